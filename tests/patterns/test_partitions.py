"""Each partition has one owner; it drains before it moves; order is kept, and what was not begun is handed back."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncLeasehold, Leasehold, LeaseLost, Misuse
from leasehold.patterns.partitions import AsyncPartitions, Entities, Moved, Partitions, QueueFull, Writer
from leasehold.patterns.partitions.settings import MemberTerms

COUNT = 24
ORDERS = Entities("orders", COUNT)
PATIENT = 30.0
TTL = 20.0
SHORT = 2.0
"""For what is about a lease that runs out, or is found to be over at its renewal."""


def entity_in(partition: int) -> str:
    return next(name for name in map(str, range(100_000)) if ORDERS.partition_of(name) == partition)


def eventually(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def one(path: Path) -> Iterator[Leasehold]:
    with Leasehold(path, label="one") as client:
        yield client


@pytest.fixture
def two(path: Path) -> Iterator[Leasehold]:
    with Leasehold(path, label="two") as client:
        yield client


def member(locks: Leasehold, **terms: object) -> Partitions:
    return Partitions(locks, ORDERS, **{"ttl": TTL, "every": 0.1, **terms})  # type: ignore[arg-type]


def test_members_share_all_partitions_and_each_owner_has_a_higher_token(one: Leasehold, two: Leasehold) -> None:
    with member(one) as first:
        first.wait_owned(COUNT, within=PATIENT)
        alone = first.owned
        with member(two) as second:
            second.wait_owned(COUNT // 2, within=PATIENT)
            eventually(lambda: len(first.owned) == COUNT // 2)
            theirs = second.owned
            assert theirs.keys() | first.owned.keys() == set(range(COUNT))
            assert all(theirs[number] > alone[number] for number in theirs)
            assert {number: alone[number] for number in first.owned} == first.owned, "what need not move has moved"
            assert len(first.members) == len(second.members) == 2
        first.wait_owned(COUNT, within=PATIENT)
        assert all(first.owned[number] > theirs[number] for number in theirs)


def test_work_is_done_in_order_one_at_a_time_and_gets_the_token(one: Leasehold) -> None:
    done: dict[str, list[int]] = {name: [] for name in ("a", "b", "c", "d")}
    busy: set[int] = set()

    def work(number: int) -> Callable[[Writer], int]:
        def add(writer: Writer) -> int:
            assert writer.partition not in busy, "two at once in one partition"
            busy.add(writer.partition)
            time.sleep(0.0005)
            done[writer.entity].append(number)
            busy.discard(writer.partition)
            writer.check(need=0.1)
            return writer.token

        return add

    with member(one) as only:
        only.wait_owned(COUNT, within=PATIENT)
        futures = [(name, only.submit(name, work(number))) for number in range(100) for name in done]
        for name, future in futures:
            assert future.result(PATIENT) == only.owned[ORDERS.partition_of(name)]
    assert all(numbers == list(range(100)) for numbers in done.values())


def test_what_runs_is_finished_and_what_waits_is_handed_back_before_a_partition_moves(
    one: Leasehold, two: Leasehold
) -> None:
    release, log = threading.Event(), list[str]()

    def hold(writer: Writer) -> None:
        assert release.wait(PATIENT)
        writer.check()
        log.append(f"held {writer.partition}")

    with member(one) as first:
        first.wait_owned(COUNT, within=PATIENT)
        running = {number: first.submit(entity_in(number), hold) for number in range(8)}
        eventually(lambda: all(future.running() for future in running.values()))
        queued = {number: first.submit(entity_in(number), lambda writer: writer.token) for number in range(8)}
        with member(two, warm=lambda writer: log.append(f"warmed {writer.partition}")) as second:
            second.wait_owned(1, within=PATIENT)
            eventually(lambda: any(future.done() for future in queued.values()))
            moving = {number for number, future in queued.items() if future.done()}
            assert not moving & second.owned.keys(), "a partition was taken from work that still runs"
            release.set()
            second.wait_owned(COUNT // 2, within=PATIENT)
            moving = {number for number, future in queued.items() if isinstance(future.exception(PATIENT), Moved)}
            assert moving
            assert moving == second.owned.keys() & set(range(8))
            for number in moving:
                assert log.index(f"held {number}") < log.index(f"warmed {number}")
                with pytest.raises(Moved, match=f"partition {number} of 'orders'"):
                    first.submit(entity_in(number), hold)
        for number in set(range(8)) - moving:
            queued[number].result(PATIENT)


def test_a_partition_is_warmed_first_and_cooled_last(one: Leasehold) -> None:
    log: list[tuple[int, str]] = []

    def noting(what: str) -> Callable[[Writer], None]:
        return lambda writer: log.append((writer.partition, what))

    with member(one, warm=noting("warm"), cool=noting("cool")) as only:
        only.wait_owned(COUNT, within=PATIENT)
        only.submit(entity_in(5), noting("work")).result(PATIENT)
    for number in range(COUNT):
        expected = ["warm", "work", "cool"] if number == 5 else ["warm", "cool"]
        assert [what for which, what in log if which == number] == expected


def test_a_partition_that_cannot_be_warmed_serves_nothing_and_is_tried_again_later(
    one: Leasehold, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[float] = []

    def warm(writer: Writer) -> None:
        if writer.partition == 5:
            attempts.append(time.monotonic())
            if len(attempts) == 1:
                raise OSError("planted")

    with member(one, warm=warm, ttl=SHORT) as only:
        eventually(lambda: len(attempts) == 1 and len(only.owned) == COUNT - 1)
        with pytest.raises(Moved):
            only.submit(entity_in(5), lambda _: None)
        only.wait_owned(COUNT, within=PATIENT)
    assert attempts[1] - attempts[0] > SHORT / 2
    assert "planted" in caplog.text


def test_a_queue_has_a_bound_and_an_entity_of_nobody_is_refused(one: Leasehold) -> None:
    release = threading.Event()
    with member(one, most_queued=3) as only:
        only.wait_owned(COUNT, within=PATIENT)
        first = only.submit("a", lambda _: release.wait(PATIENT))
        eventually(first.running)
        others = [only.submit("a", lambda _: None) for _ in range(3)]
        with pytest.raises(QueueFull, match="3 wait already in partition"):
            only.submit("a", lambda _: None)
        assert others[0].cancel()
        release.set()
        others[2].result(PATIENT)
    with pytest.raises(Moved):
        only.submit("a", lambda _: None)


def test_an_error_of_the_work_is_the_futures_and_the_next_item_runs(one: Leasehold) -> None:
    def fail(_: Writer) -> None:
        raise ZeroDivisionError

    with member(one) as only:
        only.wait_owned(COUNT, within=PATIENT)
        failing, following = only.submit("a", fail), only.submit("a", lambda _: 1)
        with pytest.raises(ZeroDivisionError):
            failing.result(PATIENT)
        assert following.result(PATIENT) == 1


def test_a_lost_partition_hands_back_its_queue_and_is_not_taken_again_while_its_work_goes_on(
    one: Leasehold, two: Leasehold
) -> None:
    release, ended = threading.Event(), list[float]()

    def hold(writer: Writer) -> None:
        assert release.wait(PATIENT)
        ended.append(time.monotonic())
        writer.check()

    with member(one, ttl=SHORT) as only:
        only.wait_owned(COUNT, within=PATIENT)
        token = only.owned[5]
        running = only.submit(entity_in(5), hold)
        queued: Future[int] = only.submit(entity_in(5), lambda writer: writer.token)
        two.force_release(ORDERS.lock_of(5), because="test")
        with pytest.raises(Moved, match="lost"):
            queued.result(PATIENT)
        time.sleep(0.5)
        assert 5 not in only.owned, "it runs twice at once in one process"
        release.set()
        with pytest.raises(LeaseLost):
            running.result(PATIENT)
        only.wait_owned(COUNT, within=PATIENT)
        assert only.owned[5] > token


KILLED = """
import pathlib, sys
from leasehold import Leasehold
from leasehold.patterns.partitions import Entities, Partitions

with Partitions(Leasehold(pathlib.Path(sys.argv[1])), Entities("orders", 24), ttl=2.0, every=0.1) as member:
    member.wait_owned(12, within=30)
    print(member.owned, flush=True)
    sys.stdin.read()
"""


def test_a_killed_member_is_followed_with_higher_tokens(path: Path, one: Leasehold) -> None:
    with member(one, ttl=SHORT) as survivor:
        survivor.wait_owned(COUNT, within=PATIENT)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        theirs: dict[int, int] = eval(process.stdout.readline())
        assert not theirs.keys() & survivor.owned.keys()
        process.kill()
        process.communicate(timeout=PATIENT)
        survivor.wait_owned(COUNT, within=PATIENT)
        assert all(survivor.owned[number] > token for number, token in theirs.items())


def test_a_member_that_comes_back_within_its_grace_gets_its_partitions_again(path: Path, one: Leasehold) -> None:
    with member(one, grace=PATIENT) as stays:
        stays.wait_owned(COUNT, within=PATIENT)
        seen = []
        for _ in range(3):
            with Leasehold(path, label="two") as client, member(client, grace=PATIENT) as returns:
                returns.wait_owned(COUNT // 2, within=PATIENT)
                eventually(lambda: len(stays.owned) == COUNT // 2)
                seen.append((returns.owned.keys(), stays.owned))
            time.sleep(0.5)  # some rounds, in which it is not there
            assert stays.owned == seen[0][1], "its partitions were taken by others, or theirs moved"
            assert stays.members == ("one", "two")
        assert seen == [seen[0]] * 3


RESTARTED = f"""
import pathlib, sys
from leasehold import Leasehold
from leasehold.patterns.partitions import Entities, Partitions
with Leasehold(pathlib.Path(sys.argv[1]), label=sys.argv[2]) as client:
    with Partitions(client, Entities("orders", {COUNT}), ttl={TTL}, every=0.1, grace={10 * PATIENT}) as member:
        for line in sys.stdin:
            print(member.owned, flush=True)
"""


class Process:
    """A member in a process of its own, which leaves in good order."""

    def __init__(self, path: Path, label: str) -> None:
        command = [sys.executable, "-c", RESTARTED, str(path), label]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def owned(self) -> dict[int, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        owned: dict[int, int] = ast.literal_eval(self._process.stdout.readline())
        return owned

    def end(self) -> None:
        if self._process.returncode is None:
            try:
                self._process.communicate(timeout=PATIENT)
            finally:
                self._process.kill()


def test_a_rolling_restart_moves_nothing(path: Path) -> None:
    """One process after the other, as a deployment does it: with a grace, members are known by their labels."""

    def has_its_share(one: Process) -> bool:
        return len(one.owned) == COUNT // 3

    with contextlib.ExitStack() as stack:

        def started(label: str) -> Process:
            process = Process(path, label)
            stack.callback(process.end)
            return process

        running = {label: started(label) for label in ("one", "two", "three")}
        eventually(lambda: all(map(has_its_share, running.values())))
        before = {label: one.owned for label, one in running.items()}
        for label in list(running):
            running.pop(label).end()
            time.sleep(0.5)  # some rounds, in which it is not there
            others = {other: one.owned for other, one in running.items()}
            assert others == {other: before[other] for other in others}, "others have taken its partitions"
            running[label] = back = started(label)
            eventually(functools.partial(has_its_share, back))
            after = back.owned
            assert after.keys() == before[label].keys()
            assert all(after[number] > token for number, token in before[label].items())
            before[label] = after
        assert {label: one.owned for label, one in running.items()} == before


def test_a_member_that_is_gone_for_longer_than_its_grace_is_followed(path: Path, one: Leasehold) -> None:
    terms = {"ttl": SHORT, "grace": 2.5}
    with member(one, **terms) as stays:
        with Leasehold(path, label="two") as client, member(client, **terms) as leaves:
            leaves.wait_owned(COUNT // 2, within=PATIENT)
        stays.wait_owned(COUNT, within=PATIENT)
        assert stays.members == ("one",)


def test_what_makes_no_sense_is_refused(one: Leasehold) -> None:
    wrong: list[dict[str, object]] = [
        {"ttl": 0}, {"every": 0}, {"most_moves": 0}, {"most_queued": 1.5}, {"warm": 1}, {"workers": 0}, {"grace": -1},
    ]  # fmt: skip
    for terms in wrong:
        with pytest.raises(Misuse):
            member(one, **terms)
    with pytest.raises(Misuse, match="Entities"):
        Partitions(one, "orders")  # type: ignore[arg-type]
    with member(one) as only, pytest.raises(Misuse, match="joined already"):
        only.join()


def test_async_members_share_keep_order_and_drain(path: Path) -> None:
    asyncio.run(asyncio.wait_for(share_keep_order_and_drain(path), 3 * PATIENT))


async def share_keep_order_and_drain(path: Path) -> None:
    done: dict[str, list[int]] = {name: [] for name in ("a", "b", "c", "d")}
    log: list[tuple[int, str]] = []
    held, release = set[int](), asyncio.Event()

    def noting(what: str) -> Callable[[Writer], Coroutine[Any, Any, None]]:
        async def note(writer: Writer) -> None:
            log.append((writer.partition, what))

        return note

    def work(number: int) -> Callable[[Writer], Coroutine[Any, Any, int]]:
        async def add(writer: Writer) -> int:
            await asyncio.sleep(0.0005)
            done[writer.entity].append(number)
            return writer.token

        return add

    async def hold(writer: Writer) -> None:
        held.add(writer.partition)
        await release.wait()
        writer.check()
        log.append((writer.partition, "held"))

    terms: MemberTerms = {"ttl": TTL, "every": 0.1, "warm": noting("warm"), "cool": noting("cool")}
    async with (
        AsyncLeasehold(path, label="one") as one,
        AsyncLeasehold(path, label="two") as two,
        AsyncPartitions(one, ORDERS, **terms) as first,
    ):
        await first.wait_owned(COUNT, within=PATIENT)
        await asyncio.gather(*(first.submit(name, work(number)) for number in range(50) for name in done))
        assert all(numbers == list(range(50)) for numbers in done.values())
        running = [first.submit(entity_in(number), hold) for number in range(8)]
        while len(held) < 8:  # noqa: ASYNC110 - each of them says so when it runs
            await asyncio.sleep(0.01)
        queued = [first.submit(entity_in(number), hold) for number in range(8)]
        async with AsyncPartitions(two, ORDERS, **terms) as second:
            await second.wait_owned(1, within=PATIENT)
            release.set()
            await second.wait_owned(COUNT // 2, within=PATIENT)
            await asyncio.gather(*running)
            outcomes = await asyncio.gather(*queued, return_exceptions=True)
            moved = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, Moved)}
            assert moved == second.owned.keys() & set(range(8))
            for number in moved:
                assert [what for which, what in log if which == number][-4:] == ["warm", "held", "cool", "warm"]
        with pytest.raises(Moved):
            await second.submit("a", hold)
        await first.wait_owned(COUNT, within=PATIENT)
