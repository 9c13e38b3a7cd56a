"""A leader that is interrupted, cannot tell how it is, or whose engine is away: its work ends, and it stands anew."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from tests.support.redis_server import RedisServer, running

from leasehold import AsyncLeasehold, Leasehold, Misuse, NotAcquired
from leasehold.patterns.election import AsyncElection, AsyncTerm, Election, Term

NAME = "billing/leader"
PATIENT = 60.0
TTL = 20.0
SHORT = 2.0
"""For what is about an engine that is away for longer."""

INTERRUPTED = """
import pathlib, sys, threading, time
from leasehold import Leasehold
from leasehold.patterns.election import Election

def work(term):
    print("leads", flush=True)
    term.wait(60)
    print(term.why, flush=True)
    sys.stdin.readline()  # finishes what it was at
    term.check()
    pathlib.Path(sys.argv[2]).write_text("ended")

with Leasehold(pathlib.Path(sys.argv[1])) as locks:
    Election(locks, "billing/leader", ttl=20, stop_within=60).serve(work, until=threading.Event())
"""


def eventually(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_a_leader_that_is_interrupted_gives_its_lease_back_only_after_its_work_has_ended(tmp_path: Path) -> None:
    path, ended = tmp_path / "leases.db", tmp_path / "ended"
    command = [sys.executable, "-c", INTERRUPTED, str(path), str(ended)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "leads\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "it was interrupted by KeyboardInterrupt\n"
            process.send_signal(signal.SIGINT)  # by an impatient finger
            _is_followed_when_its_work_has_ended(process.stdin, path, ended)
            _, told = process.communicate(timeout=PATIENT)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in told
    assert process.returncode != 0


def _is_followed_when_its_work_has_ended(leader: IO[str], path: Path, ended: Path) -> None:
    with Leasehold(path) as locks:
        election = Election(locks, NAME, ttl=TTL)
        with pytest.raises(NotAcquired), election.lead(wait=1):
            pytest.fail("another one leads while the work goes on")
        leader.write("go on\n")
        leader.flush()
        with election.lead(wait=PATIENT):
            assert ended.read_text() == "ended"


def test_a_leader_that_cannot_tell_whether_it_is_healthy_stops_and_its_work_ends_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_ill, until, why, terms = threading.Event(), threading.Event(), list[str | None](), list[int]()

    def healthy() -> bool:
        if is_ill.is_set():
            raise TimeoutError("the health check timed out")
        return True

    def work(term: Term) -> None:
        terms.append(term.token)
        if len(terms) > 1:
            until.set()
            return
        is_ill.set()
        assert term.wait(PATIENT)
        why.append(term.why)
        leader = election.leader()
        assert leader is not None
        assert leader.token == term.token, "it was given back before the work has ended"
        threading.Timer(0.5, is_ill.clear).start()

    with Leasehold(tmp_path / "leases.db") as locks:
        election = Election(locks, NAME, ttl=TTL, healthy=healthy)
        election.serve(work, until=until)
        assert why == ["it is not healthy"]
        assert len(terms) == 2
        assert "the health check timed out" in caplog.text
        with election.lead() as term:
            is_ill.set()
            assert term.wait(PATIENT)
            assert term.why == "it is not healthy"
        with pytest.raises(NotAcquired), election.lead(wait=0):
            pytest.fail("it stood all the same")


def test_async_leaders_that_cannot_tell_whether_they_are_healthy_stop(tmp_path: Path) -> None:
    async def main() -> None:
        answers, until, why = [True, True, True], asyncio.Event(), list[str | None]()

        def healthy() -> bool:
            return answers.pop()  # an error when there are none left

        async def work(term: AsyncTerm) -> None:
            assert await term.wait(PATIENT)
            why.append(term.why)
            until.set()

        async with AsyncLeasehold(tmp_path / "leases.db") as locks:
            election = AsyncElection(locks, NAME, ttl=TTL, healthy=healthy)
            await election.serve(work, until=until)
            answers += [True, True, True]
            async with election.lead() as term:
                assert await term.wait(PATIENT)
                why.append(term.why)
        assert why == ["it is not healthy"] * 2

    asyncio.run(asyncio.wait_for(main(), PATIENT))


def test_an_async_leader_that_is_cancelled_twice_waits_for_its_work_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        begun, told, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[int]()

        async def work(term: AsyncTerm) -> None:
            begun.set()
            try:
                await asyncio.sleep(PATIENT)
            finally:
                told.set()
                await may_end.wait()
                term.check()
                ended.append(term.token)

        async with AsyncLeasehold(tmp_path / "leases.db") as one, AsyncLeasehold(tmp_path / "leases.db") as two:
            election = AsyncElection(one, NAME, ttl=TTL, stop_within=PATIENT)
            serving = asyncio.create_task(election.serve(work, until=asyncio.Event()))
            await begun.wait()
            serving.cancel()
            await told.wait()
            serving.cancel()
            await asyncio.sleep(0.1)
            assert await AsyncElection(two, NAME).leader() is not None, "given back while the work goes on"
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert ended
            assert await AsyncElection(two, NAME).leader() is None

    asyncio.run(asyncio.wait_for(main(), PATIENT))


def test_instances_stand_again_when_their_engine_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    until, terms = threading.Event(), list[int]()

    def work(term: Term) -> None:
        terms.append(term.token)
        term.wait(PATIENT)

    def serve(url: str) -> None:
        with Leasehold(url) as locks:
            Election(locks, NAME, ttl=SHORT, priority=1).serve(work, until=until)

    def serve_async(url: str) -> None:
        async def main() -> None:
            over = asyncio.Event()

            async def lead(term: AsyncTerm) -> None:
                terms.append(term.token)
                await term.wait(PATIENT)

            async with AsyncLeasehold(url) as locks:
                serving = asyncio.create_task(AsyncElection(locks, NAME, ttl=SHORT).serve(lead, until=over))
                await asyncio.to_thread(until.wait)
                over.set()
                await serving

        asyncio.run(main())

    with running(RedisServer("redis", tmp_path, "--appendonly", "yes")) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        instances = [threading.Thread(target=target, args=(url,)) for target in (serve, serve, serve_async)]
        for instance in instances:
            instance.start()
        try:
            eventually(lambda: terms)
            server.end(signal.SIGTERM)
            for kind in ("<Election", "<AsyncElection"):
                eventually(lambda kind=kind: _troubles(caplog, kind) > 1)  # type: ignore[misc]
            led, instances_left = len(terms), [instance.is_alive() for instance in instances]
            server.start()
            assert instances_left == [True] * 3
            eventually(lambda: len(terms) > led)
        finally:
            until.set()
            for instance in instances:
                instance.join(PATIENT)
    assert terms == sorted(set(terms))


def _troubles(caplog: pytest.LogCaptureFixture, kind: str) -> int:
    told = [record.getMessage() for record in caplog.records]
    return sum("could not stand" in text and text.startswith(kind) for text in told)


def test_what_does_not_get_better_by_itself_is_raised(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks, pytest.raises(Misuse, match="ttl"):
        Election(locks, NAME, ttl=locks.facts.least_ttl / 2).serve(lambda _term: None, until=threading.Event())
