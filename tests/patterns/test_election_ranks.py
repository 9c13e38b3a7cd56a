"""Priorities and favourites: real processes that give way, on an engine that knows of leases only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold import AsyncLeasehold, Leasehold, Misuse
from leasehold.patterns.election import AsyncElection, AsyncTerm, Election, Leader, Term

NAME, TTL = "billing/leader", 1.5

CANDIDATE = """
import os, pathlib, sys, threading
from leasehold import Leasehold
from leasehold.patterns.election import Election

path, me, priority, ttl, parent = pathlib.Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
until = threading.Event()

def lead(term):
    print("leads", term.token, flush=True)
    while not term.wait(0.05):
        if os.getppid() != parent:
            os._exit(1)
        favourite = path.parent / "favourite"
        if favourite.exists():
            name = favourite.read_text()
            favourite.unlink()
            term.resign("asked to", in_favour_of=name)
    print("stops", term.why, flush=True)

with Leasehold(path, label=me) as locks:
    election = Election(locks, "billing/leader", ttl=ttl, priority=priority, candidate=me)
    print("stands", flush=True)
    election.serve(lead, until=until)
"""


class Candidates:
    """Processes that stand for election."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "leases.db"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.locks = Leasehold(self.path, label="observer")
        self.election = Election(self.locks, NAME, ttl=TTL)

    def start(self, name: str, *, priority: int = 0, ttl: int = 2) -> None:
        arguments = [str(self.path), name, str(priority), str(ttl), str(os.getpid())]
        process = subprocess.Popen([sys.executable, "-c", CANDIDATE, *arguments], stdout=subprocess.PIPE, text=True)
        self.processes[name] = process
        assert self.line(name) == "stands"

    def line(self, name: str) -> str:
        stdout = self.processes[name].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.communicate()

    def wait_for(self, is_so: Callable[[Leader | None], bool]) -> Leader:
        give_up_at = time.monotonic() + 60
        while not is_so(leader := self.election.leader()) or leader is None:
            assert time.monotonic() < give_up_at, f"{leader} leads"
            time.sleep(0.05)
        return leader

    def wait_for_leader(self, name: str, *, above: int = 0) -> Leader:
        def is_so(leader: Leader | None) -> bool:
            return leader is not None and leader.holder.startswith(f"{name}@") and leader.token > above

        return self.wait_for(is_so)

    def end(self) -> None:
        for name in [*self.processes]:
            self.kill(name)
        self.locks.close()


@pytest.fixture
def candidates(tmp_path: Path) -> Iterator[Candidates]:
    candidates = Candidates(tmp_path)
    try:
        yield candidates
    finally:
        candidates.end()


def test_a_leader_gives_way_to_a_higher_priority_and_comes_back_after_its_death(candidates: Candidates) -> None:
    candidates.start("low")
    first = candidates.wait_for_leader("low")
    candidates.start("high", priority=2)
    second = candidates.wait_for_leader("high", above=first.token)
    assert candidates.line("low") == f"leads {first.token}"
    assert candidates.line("low") == "stops a candidate of higher priority stands"
    assert second.token > first.token
    candidates.kill("high")
    candidates.wait_for_leader("low", above=second.token)


def test_a_leader_resigns_in_favour_of_the_last_in_the_queue(candidates: Candidates) -> None:
    candidates.start("a", ttl=30)  # for so long the others give way
    first = candidates.wait_for_leader("a")
    for name in ("b", "c", "d"):
        candidates.start(name, ttl=30)
    give_up_at = time.monotonic() + 60
    while len((candidates.locks.status(NAME) or pytest.fail("gone")).waiters) < 3:
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    (candidates.path.parent / "favourite").write_text("d")
    candidates.wait_for_leader("d", above=first.token)
    assert candidates.line("d").startswith("leads"), "and the first whose work has begun"
    for other in ("b", "c"):
        candidates.processes[other].kill()
        output, _ = candidates.processes.pop(other).communicate()
        assert "leads" not in output, "none of those before it in the queue has begun its work"


def test_who_gave_way_in_vain_leads_after_a_while(tmp_path: Path) -> None:
    """A candidate of higher priority that is seen, and never comes, keeps nobody from leading."""
    until, led = threading.Event(), list[int]()

    def lead(term: Term) -> None:
        led.append(term.token)
        term.wait(TTL)  # so long that it would have been told to give way again
        assert term.why != "a candidate of higher priority stands"
        until.set()

    with Leasehold(tmp_path / "leases.db") as locks, locks.lock(f"{NAME}/rank/3", ttl=10):
        Election(locks, NAME, ttl=TTL, priority=0).serve(lead, until=until)
    assert len(led) == 1


def test_a_block_gives_way_too(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks:
        with Election(locks, NAME, ttl=TTL, priority=1).lead(wait=20) as term:
            with locks.lock(f"{NAME}/rank/2", ttl=10):
                assert term.wait(20)
            assert term.why == "a candidate of higher priority stands"
        status = locks.status(f"{NAME}/rank/1")
        assert status is None or not status.holders, "it stands no longer"


def test_async_candidates_give_way(tmp_path: Path) -> None:
    async def run() -> None:
        path, until, low_leads, order = tmp_path / "leases.db", asyncio.Event(), asyncio.Event(), list[str]()

        async def candidate(name: str, priority: int) -> None:
            async def lead(term: AsyncTerm) -> None:
                order.append(name)
                low_leads.set()
                if name == "high":
                    term.resign("enough", in_favour_of="middle")
                elif name == "middle":
                    until.set()
                while not await term.wait(0.05):
                    pass

            async with AsyncLeasehold(path) as locks:
                election = AsyncElection(locks, NAME, ttl=TTL, priority=priority, candidate=name)
                await election.serve(lead, until=until)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(candidate("low", 0))
            await low_leads.wait()
            tasks.create_task(candidate("middle", 0))
            tasks.create_task(candidate("high", 1))
        assert order[0] == "low"
        assert order.index("high") < order.index("middle")

    asyncio.run(run())


def test_what_is_wrong_is_refused_at_once(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks:
        for settings in ({"priority": 4}, {"priority": -1}, {"priority": True}, {"candidate": ""}):
            with pytest.raises(Misuse):
                Election(locks, NAME, **settings)
        with Election(locks, NAME, ttl=TTL).lead() as term, pytest.raises(Misuse):
            term.resign(in_favour_of="")
