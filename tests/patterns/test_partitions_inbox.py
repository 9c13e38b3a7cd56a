"""Messages wait in order, are handled by the owner of their partition, and leave only by the hand of the latest one."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import psycopg2
import pymysql
import pytest
import redis
from tests.support.mariadb_server import PASSWORD, MariadbServer, running_mariadb
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

from leasehold import AsyncLeasehold, KeyReused, Leasehold, Misuse, StaleToken
from leasehold.patterns.partitions import (
    AsyncPartitions,
    Entities,
    Inbox,
    InThreads,
    Message,
    Partitions,
    QueueFull,
    RedisInbox,
    SqlInbox,
    Writer,
)

COUNT = 8
PATIENT = 30.0
ORDERS = Entities("orders", COUNT)
KINDS = ["sqlite", "postgres", "mariadb", "redis"]


class Place(NamedTuple):
    """Where an inbox is kept, and how to reach the same database for work of one's own."""

    make: Callable[..., Inbox]
    connect: Callable[[], Any] | None = None


@pytest.fixture(scope="module")
def strict_mariadb_server() -> Iterator[MariadbServer]:
    """It refuses a statement which waited for a row that was changed meanwhile, as all do since MariaDB 11.6."""
    settings = {"innodb-snapshot-isolation": "ON"}
    with running_mariadb(files=None, **settings) as server:
        yield server


def connection_to(server: MariadbServer, **settings: Any) -> Any:
    address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "database": "leasehold"}
    return pymysql.connect(**address, user="leasehold", password=PASSWORD, **settings)


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "redis":
        client = redis.Redis(port=request.getfixturevalue("redis_server").port)
        request.addfinalizer(client.close)
        orders = Entities(f"orders-{secrets.token_hex(8)}", COUNT)
        return Place(lambda **terms: RedisInbox(orders, client, **terms))
    on: Path | Callable[[], Any] = tmp_path / "app.db"
    connect: Callable[[], Any] = lambda: sqlite3.connect(tmp_path / "app.db", timeout=PATIENT)  # noqa: E731
    if kind in ("postgres", "psycopg2"):
        url, library = request.getfixturevalue("postgres_server").url, psycopg if kind == "postgres" else psycopg2
        on = connect = lambda: library.connect(url)
    elif kind == "mariadb":
        on = connect = partial(connection_to, request.getfixturevalue("mariadb_server"))
    table = f"inbox_{secrets.token_hex(8)}"

    def make(**terms: Any) -> SqlInbox:
        inbox = SqlInbox(ORDERS, on, table=table, **terms)
        request.addfinalizer(inbox.close)
        inbox.create()
        return inbox

    return Place(make, connect)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=KINDS[:3])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


def test_messages_come_in_the_order_in_which_they_were_put(place: Place) -> None:
    inbox = place.make()
    assert inbox.waiting() == []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: [inbox.put(name, number) for number in range(25)], "abcd"))
    seen: dict[str, list[int]] = defaultdict(list)
    for partition in inbox.waiting():
        messages = inbox.take(partition, 7, most=1000)
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        for message in messages:
            seen[message.entity].append(message.payload)
            inbox.acknowledge(message, 7)
            inbox.acknowledge(message, 7)  # once more, as after an answer that was lost
        assert inbox.take(partition, 7) == []
    assert seen == {name: list(range(25)) for name in "abcd"}
    assert inbox.waiting() == []


def test_a_stale_owner_can_neither_read_nor_acknowledge(place: Place) -> None:
    inbox = place.make()
    inbox.put("a", {"text": "Größe \u2028 %s :x ?"})
    [partition] = inbox.waiting()
    [message] = inbox.take(partition, 7)
    [again] = inbox.take(partition, 8)
    for refused in (
        lambda: inbox.take(partition, 7),
        lambda: inbox.acknowledge(message, 7),
        lambda: inbox.fail(message, 7, "planted"),
    ):
        with pytest.raises(StaleToken):
            refused()
    assert (again.payload, again.entity, again.tries) == ({"text": "Größe \u2028 %s :x ?"}, "a", 0)
    inbox.acknowledge(again, 8)
    assert inbox.take(partition, 8) == []


def test_an_inbox_has_a_bound_and_says_so(place: Place) -> None:
    inbox = place.make(most_waiting=3)
    for number in range(3):
        inbox.put("a", number)
    with pytest.raises(QueueFull, match="3 wait already in partition"):
        inbox.put("a", 3)
    [partition] = inbox.waiting()
    inbox.acknowledge(inbox.take(partition, 7)[0], 7)
    assert inbox.put("a", 3) == 4


def test_a_message_that_fails_is_tried_again_put_aside_and_swept(place: Place) -> None:
    inbox = place.make(most_tries=2)
    inbox.put("a", "bad")
    inbox.put("a", "good")
    [partition] = inbox.waiting()
    assert not inbox.fail(inbox.take(partition, 7)[0], 7, "first\nerror")
    bad = inbox.take(partition, 7)[0]
    assert (bad.payload, bad.tries) == ("bad", 1)
    assert inbox.fail(bad, 7, "second error")
    good = inbox.take(partition, 7)[0]
    assert (good.payload, good.tries) == ("good", 0)
    inbox.acknowledge(good, 7)
    assert inbox.waiting() == []
    assert inbox.parked() == [(partition, 1, "a", "bad", "second error")]
    assert inbox.sweep(older_than=3600) == 0
    assert inbox.sweep(older_than=0) == 1
    assert inbox.parked() == []


def test_what_is_no_json_or_too_large_is_refused(place: Place) -> None:
    inbox = place.make()
    for wrong in (object(), float("nan"), {1j}):
        with pytest.raises(Misuse, match="no JSON"):
            inbox.put("a", wrong)
    with pytest.raises(Misuse, match="at most"):
        inbox.put("a", "x" * 300_000)
    assert inbox.waiting() == []


def test_put_and_acknowledge_can_be_part_of_ones_own_transaction(database: Place) -> None:
    inbox = database.make()
    assert isinstance(inbox, SqlInbox)
    assert database.connect is not None
    connection = database.connect()
    inbox.put_on(connection, "a", "rolled back")
    connection.rollback()
    assert inbox.waiting() == []
    inbox.put_on(connection, "a", "committed")
    connection.commit()
    [partition] = inbox.waiting()
    [message] = inbox.take(partition, 7)
    inbox.acknowledge_on(connection, message, 7)
    connection.rollback()
    assert [one.payload for one in inbox.take(partition, 7)] == ["committed"]
    inbox.acknowledge_on(connection, message, 7)
    connection.commit()
    assert inbox.take(partition, 8) == []
    with pytest.raises(StaleToken):
        inbox.acknowledge_on(connection, message, 7)
    connection.close()


def test_members_handle_everything_once_and_in_order_while_they_come_and_go(place: Place, tmp_path: Path) -> None:
    """No lease is lost here, so each message is handled exactly once."""
    inbox, handled, until = place.make(), defaultdict[str, list[int]](list), threading.Event()
    names = [f"customer-{number}" for number in range(12)]
    failed: set[str] = set()

    def handle(writer: Writer, message: Message) -> None:
        assert writer.entity == message.entity
        if message.payload == 5 and message.entity not in failed:
            failed.add(message.entity)
            raise OSError("planted")
        handled[message.entity].append(message.payload)

    def serve(member: Partitions) -> threading.Thread:
        thread = threading.Thread(target=member.serve, args=(inbox, handle), kwargs={"until": until})
        thread.start()
        return thread

    def put(count: range) -> None:
        for number in count:
            for name in names:
                inbox.put(name, number)

    with (
        Leasehold(tmp_path / "leases.db") as locks,
        Leasehold(tmp_path / "leases.db", label="two") as others,
        Partitions(locks, ORDERS, every=0.1) as one,
    ):
        threads = [serve(one)]
        put(range(10))
        with Partitions(others, ORDERS, every=0.1) as two:
            threads.append(serve(two))
            put(range(10, 20))
            two.wait_owned(COUNT // 2, within=PATIENT)
            put(range(20, 30))
        put(range(30, 40))
        give_up_at = time.monotonic() + PATIENT
        while inbox.waiting() and time.monotonic() < give_up_at:
            time.sleep(0.02)
        until.set()
        for thread in threads:
            thread.join(PATIENT)
    assert handled == {name: list(range(40)) for name in names}
    assert failed == set(names)


def test_async_members_handle_messages(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        inbox, handled, until = InThreads(place.make()), list[object](), asyncio.Event()

        async def handle(writer: Writer, message: Message) -> None:
            handled.append(message.payload)
            if len(handled) == 20:
                until.set()

        async with AsyncLeasehold(tmp_path / "leases.db") as locks, AsyncPartitions(locks, ORDERS, every=0.1) as only:
            for number in range(20):
                await inbox.put("a", number)
            await asyncio.wait_for(only.serve(inbox, handle, until=until), PATIENT)
        assert await inbox.waiting() == []
        assert handled == list(range(20))

    asyncio.run(main())


def test_what_is_put_again_under_its_key_is_one_message(place: Place) -> None:
    inbox = place.make(most_waiting=2)
    assert [inbox.put("a", {"n": 1}, key="order-1") for _ in range(2)] == [1, 1]
    for entity, payload in (("a", {"n": 2}), ("b", {"n": 1})):
        with pytest.raises(KeyReused):
            inbox.put(entity, payload, key="order-1")
    assert [inbox.put("a", {"n": 1}, key="Order-1"), inbox.put("a", {"n": 1}, key="order-1")] == [2, 1]
    [partition] = inbox.waiting()
    for message in inbox.take(partition, 7):
        inbox.acknowledge(message, 7)
    assert inbox.put("a", {"n": 1}, key="order-1") == 1, "also when it was handled long ago"
    assert inbox.take(partition, 7) == []
    assert inbox.put("a", {"n": 1}) == 3, "no number was lost on the way"


def test_of_many_who_put_the_same_at_once_one_does(place: Place) -> None:
    inbox, meet = place.make(), threading.Barrier(8)

    def put(number: int) -> int:
        meet.wait(PATIENT)
        return [inbox.put("a", step, key=f"order-{step}") for step in range(6)][number % 6]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(put, range(8))) == [number % 6 + 1 for number in range(8)]
    [partition] = inbox.waiting()
    assert [message.payload for message in inbox.take(partition, 7)] == list(range(6))


class Strict:
    """An inbox on that server, and how many connections it has made: a step that is undone costs one."""

    def __init__(self, server: MariadbServer, request: pytest.FixtureRequest) -> None:
        self.connections, self.server = 0, server
        self.settings: dict[str, str] = {}
        self.inbox = SqlInbox(ORDERS, self._connect, table=f"inbox_{secrets.token_hex(8)}")
        request.addfinalizer(self.inbox.close)
        self.inbox.create()

    def _connect(self) -> Any:
        self.connections += 1
        return connection_to(self.server, **self.settings)


@pytest.fixture
def strict(strict_mariadb_server: MariadbServer, request: pytest.FixtureRequest) -> Strict:
    return Strict(strict_mariadb_server, request)


def test_of_many_who_put_at_once_none_is_undone(strict: Strict) -> None:
    meet = threading.Barrier(8)

    def put(name: str) -> None:
        meet.wait(PATIENT)
        for step in range(20):
            strict.inbox.put("a", f"{name}{step}", key=f"{name}{step}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, "abcdefgh"))
    [partition] = strict.inbox.waiting()
    assert len(strict.inbox.take(partition, 7, most=1000)) == 160
    assert strict.connections <= 8


def test_a_step_that_the_server_undid_for_another_begins_again(strict: Strict) -> None:
    strict.inbox.close()
    strict.connections, strict.settings = 0, {"init_command": "SET innodb_lock_wait_timeout = 1"}
    strict.inbox.put("a", 1)
    with contextlib.closing(connection_to(strict.server)) as other, ThreadPoolExecutor(1) as pool:
        other.begin()
        strict.inbox.put_on(other, "a", 2)  # nobody else can put into this partition meanwhile
        putting = pool.submit(strict.inbox.put, "a", 3)
        give_up_at = time.monotonic() + PATIENT
        while strict.connections == 1 and not putting.done() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        other.commit()
        assert putting.result(PATIENT) == 3
    assert strict.connections > 1, "nothing was undone"


def test_a_key_is_forgotten_after_its_time(place: Place) -> None:
    inbox = place.make(remember=0.001)
    inbox.put("a", 1, key="order-1")
    give_up_at = time.monotonic() + PATIENT
    while inbox.put("a", 1, key="order-1") == 1:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
        inbox.sweep(older_than=3600)


def test_a_key_that_was_rolled_back_is_free(database: Place) -> None:
    inbox = database.make()
    assert isinstance(inbox, SqlInbox)
    assert database.connect is not None
    connection = database.connect()
    inbox.put_on(connection, "a", 1, key="order-1")
    connection.rollback()
    assert inbox.put_on(connection, "a", 2, key="order-1") == 1
    connection.commit()
    connection.close()
    [partition] = inbox.waiting()
    assert [message.payload for message in inbox.take(partition, 7)] == [2]


LATE = 20.0


@pytest.mark.parametrize("kind", ["postgres", "psycopg2", "redis"])
def test_another_process_is_woken_where_the_engine_can_tell(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two inboxes that know nothing of each other; whoever looks for itself would come far too late."""
    make = place_of(kind, request, tmp_path).make
    one, other = make(), make()
    bell, over = threading.Event(), threading.Event()
    listening = threading.Thread(target=one.listen, args=(bell.set, over))
    listening.start()
    try:
        assert bell.wait(PATIENT), "it listens"
        for _ in range(3):
            bell.clear()
            other.put("a", 1)
            assert bell.wait(LATE)
    finally:
        over.set()
        listening.join(PATIENT)


def test_who_serves_is_woken_by_what_its_own_process_puts(place: Place, tmp_path: Path) -> None:
    inbox, until, handled = place.make(), threading.Event(), threading.Event()
    with Leasehold(tmp_path / "leases.db") as locks, Partitions(locks, ORDERS, every=0.1) as only:
        only.wait_owned(COUNT, within=PATIENT)
        serving = threading.Thread(
            target=only.serve, args=(inbox, lambda *_: handled.set()), kwargs={"until": until, "every": 3600}
        )
        serving.start()
        for _ in range(12):  # so that the pauses grow beyond all patience
            time.sleep(0.1)
        for number in range(3):
            handled.clear()
            inbox.put("a", number)
            assert handled.wait(PATIENT)
        until.set()
        serving.join(PATIENT)
        assert not serving.is_alive()


def test_a_server_that_ends_the_listening_is_listened_to_again(
    redis_server: RedisServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    make, bell, over = place_of("redis", request, tmp_path).make, threading.Event(), threading.Event()
    inbox, other = make(), make()
    listening = threading.Thread(target=inbox.listen, args=(bell.set, over))
    listening.start()
    try:
        assert bell.wait(PATIENT)
        with redis.Redis(port=redis_server.port) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        bell.clear()
        give_up_at = time.monotonic() + PATIENT
        while not bell.wait(0.2):  # what is put before it listens again is found by looking
            assert time.monotonic() < give_up_at, "it does not listen again"
            other.put("a", 1)
    finally:
        over.set()
        listening.join(PATIENT)


FORKS = """
import os, sys, psycopg
from leasehold.patterns.partitions import Entities, SqlInbox

made = []

def connect():
    made.append(os.getpid())
    return psycopg.connect(sys.argv[1])

inbox = SqlInbox(Entities("forked", 4), connect, table="forked_inbox")
inbox.create()
assert inbox.put("a", 1) == 1
child = os.fork()
if child == 0:
    assert inbox.put("a", 2) == 2 and made[-1] == os.getpid()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert inbox.put("a", 3) == 3 and set(made) == {os.getpid()}, "the parent's connections are as they were"
inbox.close()
"""


def test_a_forked_child_has_connections_of_its_own(postgres_server: PostgresServer) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKS, postgres_server.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
