"""Connections that a server or a network has ended are replaced, and nothing is done twice on that account."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import psycopg
import psycopg2
import pymysql
import pytest
from tests.support.mariadb_server import PASSWORD
from tests.support.postgres_server import PostgresServer

from leasehold import EngineUnavailable, OutcomeUnknown
from leasehold.core.worlds import run_blocking
from leasehold.patterns.idempotency import AsyncIdempotency, AsyncRun, Idempotency, InThreads, Run, SqlKeys
from leasehold.patterns.jobs import Jobs
from leasehold.patterns.partitions import Entities, SqlInbox
from leasehold.testing.proxy import Proxy

ORDERS = Entities("orders", 1)
SEVERAL = 4
Lost = Literal["request", "reply"]


class Place:
    """A database behind a proxy, and connections to it."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind, self.server, self.made = kind, server, list[Any]()
        self.proxy = Proxy("127.0.0.1", server.port)

    def connect(self) -> Any:
        if self.kind == "pymysql":
            address: dict[str, Any] = {"host": "127.0.0.1", "port": self.proxy.port, "database": "leasehold"}
            self.made.append(pymysql.connect(**address, user="leasehold", password=PASSWORD))
        else:
            library: Any = {"psycopg": psycopg, "psycopg2": psycopg2}[self.kind]
            self.made.append(library.connect(self.server.url_at("127.0.0.1", self.proxy.port)))
        return self.made[-1]

    def end_all(self) -> None:
        """As a server does that is restarted, or has had enough of idle connections."""
        while self.made:
            connection = self.made.pop()
            if self.kind != "pymysql" and not connection.closed:
                self.server.sql("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)
            elif self.kind == "pymysql" and connection.open:
                self.server.sql(f"KILL {connection.thread_id()}")

    def keys(self) -> SqlKeys:
        keys = SqlKeys(self.connect, table=f"key_{secrets.token_hex(8)}")
        keys.create()
        return keys

    def inbox(self) -> SqlInbox:
        inbox = SqlInbox(ORDERS, self.connect, table=f"inbox_{secrets.token_hex(8)}", most_tries=2)
        inbox.create()
        return inbox

    def losses(self) -> Iterator[tuple[Lost, int]]:
        """Lose each of the requests that are sent between two turns, and each of the replies to them."""
        ways: tuple[Lost, Lost] = ("request", "reply")
        for what in ways:
            for number in itertools.count():
                self.proxy.lose(what, after=number)
                yield what, number
                was_met = self.proxy.struck
                self.proxy.heal()
                if not was_met:
                    assert number > 1
                    break


@pytest.fixture(params=["psycopg", "psycopg2", "pymysql"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = "mariadb_server" if request.param == "pymysql" else "postgres_server"
    place = Place(request.param, request.getfixturevalue(server))
    with place.proxy:
        yield place
        for connection in place.made:
            with_no_word = getattr(connection, "_force_close", connection.close)
            with_no_word()


def _at_once(step: Callable[[], object]) -> None:
    """In several threads, so that there are several idle connections afterwards."""
    meet = threading.Barrier(SEVERAL)

    def call() -> None:
        meet.wait(30)
        step()

    threads = [threading.Thread(target=call) for _ in range(SEVERAL)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# What was idle


def test_keys_go_on_after_their_connections_were_ended(place: Place) -> None:
    store = place.keys()
    keys = Idempotency(store, scope="payments")
    _at_once(lambda: keys.once(secrets.token_hex(4), lambda _run: 1))
    for step in (
        lambda: keys.once("order-1", lambda run: run.token),
        lambda: keys.once("order-1", lambda _run: pytest.fail("it ran again")),
        lambda: keys.forget("order-1", because="a test"),
        keys.sweep,
        lambda: run_blocking(store.now()),
    ):
        place.end_all()
        assert step() is not None
    store.close()


def test_a_job_that_runs_rarely_runs_each_time(place: Place) -> None:
    store = place.keys()
    nightly = Jobs(store).once_per(0.001, name="nightly")(lambda _run: "exported")
    for _ in range(4):
        place.end_all()
        assert nightly().state == "ran"
    store.close()


def test_an_operation_during_which_connections_are_ended_is_carried_out_once(place: Place) -> None:
    store, runs = place.keys(), list[int]()
    keys = Idempotency(store, scope="payments")

    def charge(run: Run) -> str:
        runs.append(run.token)
        for go_on in (run.renew, lambda: run.reach("charged", 7)):
            place.end_all()
            go_on()
        place.end_all()
        return "charged"

    for _ in range(2):
        assert keys.once("order-1", charge) == "charged"
    assert len(runs) == 1
    store.close()


def test_the_same_in_async_code(place: Place) -> None:
    store, runs = place.keys(), list[int]()

    async def charge(run: AsyncRun) -> str:
        runs.append(run.token)
        place.end_all()
        return "charged"

    async def main() -> None:
        keys = AsyncIdempotency(InThreads(store), scope="payments")
        for _ in range(2):
            place.end_all()
            assert await keys.once("order-1", charge) == "charged"

    asyncio.run(main())
    assert len(runs) == 1
    store.close()


def test_an_inbox_goes_on_after_its_connections_were_ended(place: Place) -> None:
    inbox = place.inbox()
    _at_once(lambda: inbox.put("a", 0))
    place.end_all()
    assert inbox.put("a", 1) == SEVERAL + 1
    place.end_all()
    assert inbox.put("a", 2, key="two") == SEVERAL + 2
    place.end_all()
    assert inbox.waiting() == [0]
    for number in range(SEVERAL + 2):
        place.end_all()
        message = inbox.take(0, 7)[0]
        place.end_all()
        if number:
            inbox.acknowledge(message, 7)
            continue
        assert not inbox.fail(message, 7, "not yet")
        place.end_all()
        assert inbox.fail(message, 7, "never")
    place.end_all()
    assert inbox.waiting() == []
    place.end_all()
    assert [parked.error for parked in inbox.parked()] == ["never"]
    place.end_all()
    assert inbox.sweep(older_than=0) == 1
    inbox.close()


# What is lost at any moment


def test_whatever_is_lost_an_operation_is_carried_out_once(place: Place) -> None:
    store = place.keys()
    keys = Idempotency(store, scope="payments")
    for lost in place.losses():
        runs: list[int] = []

        def charge(run: Run, runs: list[int] = runs) -> int:
            runs.append(run.token)
            run.reach("charged", 7)
            return run.token

        first = keys.once(f"order {lost}", charge)
        assert keys.once(f"order {lost}", charge) == first
        assert len(runs) == 1, lost
    store.close()


def test_whatever_is_lost_a_note_is_written_once_and_who_wrote_it_knows(place: Place) -> None:
    store = place.keys()
    for lost in place.losses():
        for version in range(3):
            assert run_blocking(store.set_note(f"note {lost}", version, f"text {version}")), lost
            assert not run_blocking(store.set_note(f"note {lost}", version, "late")), lost
        note = run_blocking(store.note(f"note {lost}"))
        assert (note.version, note.text) == (3, "text 2")
    store.close()


def test_whatever_is_lost_a_message_with_a_key_is_one(place: Place) -> None:
    inbox, count = place.inbox(), 0
    for lost in place.losses():
        count += 1
        assert inbox.put("a", 1, key=f"order {lost}") == count, lost
    assert len(inbox.take(0, 7, most=1000)) == count
    inbox.close()


def test_whatever_is_lost_a_message_without_a_key_is_one_or_in_doubt(place: Place) -> None:
    inbox, in_doubt = place.inbox(), set[int]()
    for number, _ in enumerate(place.losses()):
        try:
            inbox.put("a", number)
        except OutcomeUnknown as unknown:
            in_doubt.add(number)
            _tells_where_and_no_secret(unknown, place)
    put = [message.payload for message in inbox.take(0, 7, most=1000)]
    assert put == sorted(set(put)), "one was put twice"
    assert set(range(number + 1)) - in_doubt <= set(put), "one was lost"
    assert in_doubt - set(put), "none was lost on the way there"
    assert in_doubt & set(put), "none was lost on the way back"
    inbox.close()


def test_whatever_is_lost_a_message_leaves_once_and_its_failures_are_counted_once(place: Place) -> None:
    inbox = place.inbox()
    for lost in place.losses():
        inbox.put("a", 1, key=f"order {lost}")
        [message] = inbox.take(0, 7)
        try:
            assert not inbox.fail(message, 7, "not yet")
        except OutcomeUnknown as unknown:
            _tells_where_and_no_secret(unknown, place)
        [message] = inbox.take(0, 7)
        assert message.tries <= 1, lost
        inbox.acknowledge(message, 7)
        assert inbox.waiting() == [], lost
    inbox.close()


# What remains


def _tells_where_and_no_secret(error: Exception, place: Place) -> None:
    assert f"at 127.0.0.1:{place.proxy.port}" in str(error)
    assert PASSWORD not in str(error)


def test_a_server_that_is_gone_is_told_in_our_own_words(place: Place) -> None:
    store = place.keys()
    keys = Idempotency(store, scope="payments")
    place.proxy.refuse()
    with pytest.raises(OutcomeUnknown, match="may or may not have been carried out") as unknown:
        run_blocking(store.set_note("a", 0, "b"))
    _tells_where_and_no_secret(unknown.value, place)
    with pytest.raises(EngineUnavailable, match="nothing was carried out") as unavailable:
        keys.once("order-1", lambda _run: 1)
    _tells_where_and_no_secret(unavailable.value, place)
    for step in (lambda: run_blocking(store.now()), lambda: keys.forget("order-1", because="a test")):
        with pytest.raises(EngineUnavailable):
            step()
    place.proxy.heal()
    assert keys.once("order-1", lambda _run: 1) == 1
    store.close()


def test_nobody_is_told_a_password_by_who_cannot_connect(place: Place) -> None:
    place.proxy.refuse()
    with pytest.raises(EngineUnavailable) as unavailable:
        place.keys()
    assert PASSWORD not in str(unavailable.value)
    assert "the database cannot be reached" in str(unavailable.value)


def test_what_is_wrong_with_the_statement_is_not_tried_again(place: Place) -> None:
    store = SqlKeys(place.connect, table="nobody_made_it")
    with pytest.raises(Exception, match="nobody_made_it"):
        run_blocking(store.note("a"))
    assert len(place.made) == 1


def test_a_connection_of_the_callers_own_is_not_replaced(place: Place) -> None:
    store = place.keys()
    keys, own = Idempotency(store, scope="payments"), place.connect()

    def charge(run: Run) -> None:
        place.end_all()
        run.complete("charged", on=own)

    with pytest.raises(Exception, match=r"(?i)connection|server|lost|terminat") as error:
        keys.once("order-1", charge)
    assert not isinstance(error.value, EngineUnavailable | OutcomeUnknown)
    assert keys.once("order-1", lambda _run: "charged now") == "charged now"
    store.close()


def test_a_transaction_that_broke_as_it_was_committed_is_not_begun_again(postgres_server: PostgresServer) -> None:
    place = Place("psycopg", postgres_server)
    with place.proxy:
        inbox = place.inbox()
        table, name = inbox._table, f"ends_{secrets.token_hex(4)}"
        with psycopg.connect(postgres_server.url, autocommit=True) as own:
            own.execute(f"CREATE SEQUENCE {name}")
            own.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"PERFORM nextval('{name}'); PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
            )
            own.execute(
                f"CREATE CONSTRAINT TRIGGER {name} AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
                f"FOR EACH ROW EXECUTE FUNCTION {name}()"
            )
            with pytest.raises(OutcomeUnknown):
                inbox.put("a", 1)
            assert own.execute(f"SELECT last_value FROM {name}").fetchall() == [(1,)]
            with pytest.raises(OutcomeUnknown):
                inbox.put("a", 1, key="one")
            assert own.execute(f"SELECT last_value FROM {name}").fetchall() == [(3,)]
            own.execute(f"DROP TRIGGER {name} ON {table}")
            assert inbox.put("a", 1, key="one") == 1
        inbox.close()
