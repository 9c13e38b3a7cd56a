"""One leads, the next takes over; work is stopped before its lease is given back, and by force when it must be."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leasehold import AsyncLeasehold, Leasehold, LeaseLost, Misuse, NotAcquired
from leasehold.fences import SqliteFence
from leasehold.patterns.election import EXIT_CODE, AsyncElection, AsyncTerm, Election, Leader, Term

TTL = 1.5
NAME = "billing/leader"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def locks(path: Path) -> Iterator[Leasehold]:
    with Leasehold(path, label="instance") as client:
        yield client


def test_one_leads_at_a_time_and_each_term_has_a_higher_token(path: Path) -> None:
    until, terms, leading = threading.Event(), list[int](), list[int]()

    def work(term: Term) -> None:
        leading.append(term.token)
        assert leading == [term.token], "two lead at once"
        terms.append(term.token)
        term.wait(0.05)
        leading.remove(term.token)
        if len(terms) >= 9:
            until.set()

    def instance() -> None:
        with Leasehold(path) as client:
            Election(client, NAME, ttl=TTL).serve(work, until=until)

    instances = [threading.Thread(target=instance) for _ in range(3)]
    for thread in instances:
        thread.start()
    for thread in instances:
        thread.join(30)
    assert not any(thread.is_alive() for thread in instances)
    assert terms == sorted(set(terms))


DIES = """
import pathlib, sys
from leasehold import Leasehold
from leasehold.patterns.election import Election

with Election(Leasehold(pathlib.Path(sys.argv[1])), "billing/leader", ttl=1.5).lead() as term:
    print(term.token, flush=True)
    sys.stdin.read()
"""


def test_a_leader_that_was_killed_is_followed_with_a_higher_token(path: Path, locks: Leasehold) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    token = int(process.stdout.readline())
    with pytest.raises(NotAcquired), Election(locks, NAME, ttl=TTL).lead(wait=0):
        pytest.fail("two lead at once")
    process.kill()
    process.communicate(timeout=20)
    with Election(locks, NAME, ttl=TTL).lead(wait=20) as term:
        assert term.token > token


def test_the_lease_is_given_back_only_when_the_work_has_ended(path: Path, locks: Leasehold) -> None:
    election, until, ended = Election(locks, NAME, ttl=TTL), threading.Event(), list[float]()
    began = threading.Event()

    def work(term: Term) -> None:
        began.set()
        assert term.wait(20)
        assert term.why == "this instance is to stop"
        time.sleep(0.5)  # finishes what it was at
        term.check()
        ended.append(time.monotonic())

    serving = threading.Thread(target=election.serve, args=(work,), kwargs={"until": until})
    serving.start()
    assert began.wait(20)
    until.set()
    with Leasehold(path) as other, Election(other, NAME, ttl=TTL).lead(wait=20):
        assert ended, "the next one led before the work had ended"
        assert time.monotonic() >= ended[0]
    serving.join(20)


def test_who_listens_is_told_once_that_a_leader_stops(locks: Leasehold, caplog: pytest.LogCaptureFixture) -> None:
    told: queue.Queue[tuple[str | None, bool]] = queue.Queue()
    in_vain = threading.Event()

    def fails(_term: Term) -> None:
        in_vain.set()
        raise ValueError("planted")

    def tell(term: Term) -> None:
        told.put((term.why, term.remaining > 0))

    with Election(locks, NAME, ttl=20).lead() as term:
        term.on_stopping(fails)
        term.on_stopping(tell)
        assert told.empty()
        resigning = [threading.Thread(target=term.resign, args=("enough",)) for _ in range(8)]
        for thread in resigning:
            thread.start()
        assert told.get(timeout=20) == ("enough", True), "it leads until its work has ended"
        for thread in resigning:
            thread.join(20)
        term.on_stopping(tell)  # at once
        assert told.get(timeout=20) == ("enough", True)
        assert in_vain.wait(20)
    with Election(locks, NAME, ttl=20).lead() as term:
        term.on_stopping(tell)
    assert told.get(timeout=20)[0] == "its work has ended"
    assert told.empty()
    give_up_at = time.monotonic() + 20
    while "a callback of on_stopping failed" not in caplog.text and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert "a callback of on_stopping failed" in caplog.text
    with pytest.raises(Misuse, match="called with the term"):
        term.on_stopping("stop")  # type: ignore[arg-type]


def test_an_unhealthy_leader_stops_and_an_unhealthy_candidate_does_not_stand(locks: Leasehold) -> None:
    health = [True]
    election = Election(locks, NAME, ttl=TTL, healthy=lambda: health[0])
    with election.lead() as term:
        health[0] = False
        assert term.wait(20)
        assert term.why == "it is not healthy"
    with pytest.raises(NotAcquired), election.lead(wait=0):
        pytest.fail("it stood all the same")
    health[0] = True
    with election.lead():
        pass


def test_work_that_does_not_stop_meets_the_deadline(locks: Leasehold) -> None:
    until, hard, go_on = threading.Event(), list[Term](), threading.Event()

    def at_deadline(term: Term) -> None:
        hard.append(term)
        until.set()
        go_on.set()

    def work(term: Term) -> None:
        locks.force_release(NAME, because="a test")
        go_on.wait(20)

    since = time.monotonic()
    Election(locks, NAME, ttl=TTL, stop_within=60, at_deadline=at_deadline).serve(work, until=until)
    assert time.monotonic() - since < 30, "it was given more time than its lease had"
    [term] = hard
    assert term.why == "its lease was not renewed in time"
    with pytest.raises(LeaseLost):
        term.check()


def test_work_has_so_long_to_stop_while_its_lease_lasts(locks: Leasehold) -> None:
    until, hard, go_on = threading.Event(), list[float](), threading.Event()

    def at_deadline(term: Term) -> None:
        hard.append(term.remaining)
        go_on.set()

    def work(_term: Term) -> None:
        until.set()
        go_on.wait(20)

    Election(locks, NAME, ttl=20, stop_within=0.2, at_deadline=at_deadline).serve(work, until=until)
    assert hard[0] > 1, "its lease had not run out"


STUBBORN = """
import pathlib, sys, threading, time
from leasehold import Leasehold
from leasehold.patterns.election import Election

until = threading.Event()
def work(term):
    until.set()
    time.sleep(60)

Election(Leasehold(pathlib.Path(sys.argv[1])), "billing/leader", ttl=1.5, stop_within=0.1).serve(work, until=until)
"""


def test_by_default_the_process_of_stubborn_work_ends(path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", STUBBORN, str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert run.returncode == EXIT_CODE
    assert "has not stopped" in run.stderr


def test_an_error_of_the_work_ends_the_term_and_is_raised(locks: Leasehold) -> None:
    def work(_term: Term) -> None:
        raise ZeroDivisionError

    election = Election(locks, NAME, ttl=TTL)
    with pytest.raises(ZeroDivisionError):
        election.serve(work, until=threading.Event())
    assert election.leader() is None


def test_observers_see_who_leads(path: Path, locks: Leasehold) -> None:
    with Leasehold(path) as other:
        seen = Election(other, NAME).observe(every=0.01)
        assert next(seen) is None
        with Election(locks, NAME, ttl=TTL).lead() as term:
            leader = next(seen)
            assert isinstance(leader, Leader)
            assert leader.token == term.token
            assert leader.holder.startswith("instance@")
        assert next(seen) is None


def test_wrong_settings_are_refused_at_once(locks: Leasehold) -> None:
    for settings in ({"name": ""}, {"ttl": -1}, {"stop_within": "soon"}, {"healthy": 1}, {"at_deadline": None}):
        with pytest.raises(Misuse):
            Election(locks, **{"name": NAME, **settings})  # type: ignore[arg-type]


def test_async_instances_take_turns(path: Path) -> None:
    async def run() -> None:
        until, terms = asyncio.Event(), list[int]()

        async def work(term: AsyncTerm) -> None:
            terms.append(term.token)
            await asyncio.sleep(0.02)
            if len(terms) >= 6:
                until.set()

        async def instance() -> None:
            async with AsyncLeasehold(path) as client:
                await AsyncElection(client, NAME, ttl=TTL).serve(work, until=until)

        async with asyncio.timeout(30):
            await asyncio.gather(*(instance() for _ in range(3)))
        assert terms == sorted(set(terms))

    asyncio.run(run())


def test_async_work_that_goes_on_is_cancelled(path: Path) -> None:
    async def run() -> None:
        until, cancelled = asyncio.Event(), list[str]()

        async def work(_term: AsyncTerm) -> None:
            until.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append("told")
                raise

        async with AsyncLeasehold(path) as client, asyncio.timeout(30):
            election = AsyncElection(client, NAME, ttl=TTL, stop_within=0.1)
            await election.serve(work, until=until)
            assert cancelled == ["told"]
            assert await election.leader() is None

    asyncio.run(run())


def test_an_async_service_that_is_cancelled_gives_its_lease_back_after_its_work_has_ended(path: Path) -> None:
    async def run() -> None:
        began, ended, cancelled = asyncio.Event(), list[bool](), list[int]()

        async def work(term: AsyncTerm) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.append(term.token)
                await asyncio.sleep(0.3)  # puts away what it was at
                term.check()
                ended.append(True)

        async with AsyncLeasehold(path) as client, AsyncLeasehold(path) as other, asyncio.timeout(30):
            serving = asyncio.create_task(AsyncElection(client, NAME, ttl=10).serve(work, until=asyncio.Event()))
            await began.wait()
            serving.cancel()
            async with AsyncElection(other, NAME, ttl=TTL).lead():
                assert ended == [True], "the next one led before the work had ended"
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert len(cancelled) == 1

    asyncio.run(run())


def test_async_work_that_will_not_be_cancelled_meets_the_deadline(path: Path) -> None:
    async def run() -> None:
        until, hard, enough = asyncio.Event(), list[float](), asyncio.Event()

        async def work(_term: AsyncTerm) -> None:
            until.set()
            while not enough.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await enough.wait()

        def at_deadline(term: AsyncTerm) -> None:
            hard.append(term.remaining)
            enough.set()

        async with AsyncLeasehold(path) as client, asyncio.timeout(30):
            election = AsyncElection(client, NAME, ttl=20, stop_within=0.2, at_deadline=at_deadline)
            await election.serve(work, until=until)
        assert hard[0] > 1, "its lease had not run out, and would have been renewed for ever"

    asyncio.run(run())


def test_who_falls_ill_while_it_waits_does_not_lead(path: Path, locks: Leasehold) -> None:
    health = [True]
    with Leasehold(path) as other:
        ill = Election(other, NAME, ttl=TTL, healthy=lambda: health[0])
        with ThreadPoolExecutor(1) as pool:
            with locks.lock(NAME, ttl=30):
                waiting = pool.submit(_lead_once, ill)
                give_up_at = time.monotonic() + 20
                while not (locks.status(NAME) or pytest.fail("gone")).waiters:
                    assert time.monotonic() < give_up_at
                    time.sleep(0.02)
                health[0] = False
            with pytest.raises(NotAcquired):
                waiting.result(20)


def _lead_once(election: Election) -> None:
    with election.lead(wait=20):
        pytest.fail("it leads, and is ill")


FROZEN = """
import pathlib, sqlite3, sys
from leasehold import Leasehold, StaleToken
from leasehold.fences import SqliteFence
from leasehold.patterns.election import Election

database = sqlite3.connect(sys.argv[2], timeout=30, isolation_level=None)
with Election(Leasehold(pathlib.Path(sys.argv[1])), "billing/leader", ttl=1.5).lead() as term:
    with SqliteFence(database).writing("report", term) as connection:
        connection.execute("INSERT INTO report VALUES ('first')")
    print(term.token, flush=True)
    sys.stdin.readline()  # here it is frozen, and thaws when another one leads
    try:
        with SqliteFence(database).writing("report", term) as connection:
            connection.execute("INSERT INTO report VALUES ('late')")
    except StaleToken as refused:
        print("refused", refused.token, flush=True)
    import os; os._exit(0)
"""


def test_what_a_frozen_leader_writes_when_it_thaws_is_refused_by_its_terms_token(
    path: Path, locks: Leasehold, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", timeout=30, isolation_level=None)) as database:
        fence = SqliteFence(database)
        fence.create()
        database.execute("CREATE TABLE report (by TEXT)")
        command = [sys.executable, "-c", FROZEN, str(path), str(tmp_path / "app.db")]
        frozen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert frozen.stdout is not None
        token = int(frozen.stdout.readline())
        frozen.send_signal(signal.SIGSTOP)
        with Election(locks, NAME, ttl=TTL).lead(wait=30) as term:
            assert term.token > token
            with fence.writing("report", term) as connection:
                connection.execute("INSERT INTO report VALUES ('second')")
            frozen.send_signal(signal.SIGCONT)
            told, _ = frozen.communicate("go on\n", timeout=30)
        assert told == f"refused {token}\n"
        assert database.execute("SELECT by FROM report").fetchall() == [("first",), ("second",)]


def test_async_leaders_are_observed_and_stop_when_unhealthy(path: Path) -> None:
    async def run() -> None:
        health = [True]
        async with AsyncLeasehold(path) as client, asyncio.timeout(30):
            election = AsyncElection(client, NAME, ttl=TTL, healthy=lambda: health[0])
            seen = election.observe(every=0.01)
            assert await anext(seen) is None
            async with election.lead() as term:
                leader = await anext(seen)
                assert leader is not None
                assert leader.token == term.token
                health[0] = False
                assert await term.wait(20)
            assert await anext(seen) is None

    asyncio.run(run())
