"""The measures behind `tools/goals.py`: each puts one goal to the test on real engines, and says what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from endurance import endure
from leasehold import AsyncLeasehold, EngineError, Lease, Leasehold, LeaseLost, NotAcquired
from leasehold.bench.places import Place, private_places, private_redis
from leasehold.bench.resp import BareSocket
from leasehold.chaos.servers import started
from leasehold.chaos.site import Server
from leasehold.engines.redlock import initialise
from leasehold.testing.interrupting import CtrlC
from leasehold.wires.sqlite_file import lease_file
from leasehold.worlds import boot_clock

ROOT = Path(__file__).parents[1]
SERVERS = ("redis", "postgresql", "mariadb", "etcd", "zookeeper", "consul")
MEMORY = Path("/dev/shm")  # noqa: S108
OVER_THE_WAIT, CANCELLED_WITHIN, ENGINE_BACK, TOLD_WITHIN = 0.25, 0.1, 1.0, 0.05
LEAST_TTL = {"consul": 10.0}
TTL = 2.0
ENDURED_FOR = 600.0


class Seen(NamedTuple):
    """What was seen, and whether it is what was aimed at."""

    text: str
    met: bool | None
    missed_by: str = ""


@contextlib.contextmanager
def server_of(engine: str) -> Iterator[tuple[str, Server]]:
    """A server of an engine, in memory."""
    folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
    with folder as path, started(engine, Path(path)) as (url, [server]):
        yield url, server


# R4: told without the network


def told_late(engine: str, leases: int) -> float:
    """By how much the latest of these holders was told after its own deadline, at a server that stands still."""
    late: list[float] = []
    with server_of(engine) as (url, server), Leasehold(url) as locks, contextlib.ExitStack() as stack:
        ttl = LEAST_TTL.get(engine, TTL)
        held = [locks.lock(f"lost-{number}", ttl=ttl).acquire() for number in range(leases)]
        for pid in server.pids:
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)

        def note(lease: Lease, _loss: LeaseLost) -> None:
            late.append(boot_clock() - lease.valid_until)

        for lease in held:
            lease.on_lost(functools.partial(note, lease))
        give_up_at = boot_clock() + 3 * ttl
        while len(late) < leases and boot_clock() < give_up_at:
            time.sleep(0.05)
    if len(late) < leases:
        raise RuntimeError(f"{leases - len(late)} holders were never told")
    return max(late)


def told_in_time() -> Seen:
    """R4, on every server: twenty holders each, in three rounds, since a machine that stands still is late itself."""
    rounds = {engine: [told_late(engine, 20) * 1000 for _ in range(3)] for engine in SERVERS}
    seen = _worst({engine: statistics.median(late) for engine, late in rounds.items()}, TOLD_WITHIN * 1000, "ms")
    worst, load = max(max(late) for late in rounds.values()), os.getloadavg()[0]
    text = f"the latest of 20 holders was told so long after its own deadline, median of three rounds: {seen.text}"
    return seen._replace(text=f"{text} (at worst {worst:.0f} ms; load {load:.0f} on {os.cpu_count()} cores)")


# L2: the engine comes back


def back_after(engine: str) -> float:
    """Seconds from the moment a killed server answers again to the grant of one who asked meanwhile."""
    granted: list[float] = []
    with server_of(engine) as (url, server), Leasehold(url) as locks:
        with locks.lock("warm", ttl=LEAST_TTL.get(engine, 2)):
            pass

        def ask() -> None:
            give_up_at = boot_clock() + 60
            while boot_clock() < give_up_at:
                with contextlib.suppress(NotAcquired, EngineError):
                    locks.lock("wanted", ttl=LEAST_TTL.get(engine, 2), wait=5).acquire()  # noqa: LH130 - goes on only if so
                    granted.append(boot_clock())
                    return

        server.stop(hard=True)
        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.5)
        server.start()
        back = boot_clock()
        asking.join()
    return max(granted[0] - back, 0.0)


def engine_back() -> Seen:
    """L2, on every server, three times each."""
    worst = {engine: max(back_after(engine) for _ in range(3)) for engine in SERVERS}
    return _worst(worst, ENGINE_BACK, "s")


# L3: waits are kept


def overrun(engine: str) -> float:
    """By how much a call exceeds its wait at a server that stands still; known and new connections alike."""
    wait, furthest = 0.5, 0.0
    with server_of(engine) as (url, server), Leasehold(url) as warm, Leasehold(url) as cold:
        with warm.lock("warm", ttl=LEAST_TTL.get(engine, 2)):
            pass
        pids = server.pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            for locks in (warm, cold, warm, cold):
                began = boot_clock()
                with contextlib.suppress(NotAcquired, EngineError):
                    locks.lock("wanted", ttl=LEAST_TTL.get(engine, 2), wait=wait).acquire()
                furthest = max(furthest, boot_clock() - began - wait)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    return furthest


async def cancelled(engine: str) -> float:
    """How long a cancelled call takes to return."""
    with server_of(engine) as (url, _server):
        async with AsyncLeasehold(url) as locks, locks.lock("held", ttl=LEAST_TTL.get(engine, 2)):
            waiting = asyncio.create_task(locks.lock("held", ttl=LEAST_TTL.get(engine, 2), wait=30).acquire())
            await asyncio.sleep(0.5)
            began = boot_clock()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            return boot_clock() - began


def waits_kept() -> Seen:
    """L3, on every server."""
    beyond = _worst({engine: overrun(engine) for engine in SERVERS}, OVER_THE_WAIT, "s")
    returned = _worst({engine: asyncio.run(cancelled(engine)) for engine in SERVERS}, CANCELLED_WITHIN, "s")
    text = f"beyond the wait at a server that stands still: {beyond.text}; a cancelled wait returned in {returned.text}"
    missed = " and ".join(filter(None, (beyond.missed_by, returned.missed_by)))
    return Seen(text, not missed, missed)


# L5: a minority that is down


def minority_down() -> Seen:
    """Take and release on three servers, and on two of them, in turns of fifty."""
    with contextlib.ExitStack() as stack:
        healthy = [stack.enter_context(private_redis()) for _ in range(3)]
        lame = [stack.enter_context(private_redis()) for _ in range(2)]
        with private_redis() as third:
            urls = [_majority(healthy), _majority([*lame, third])]
        clients = [stack.enter_context(Leasehold(url)) for url in urls]
        rounds: list[list[float]] = [[], []]
        for _ in range(12):
            for number, locks in enumerate(clients):
                rounds[number].append(_pairs(locks, 50))
    ratio = statistics.median(down / up for up, down in zip(*rounds, strict=True))
    missed = "" if ratio <= 2 else f"{ratio - 2:.2f}"
    return Seen(f"{ratio:.2f} times as long with one of three down", not missed, missed)


def _majority(urls: list[str]) -> str:
    url = f"redlock://{','.join(url.removeprefix('redis://') for url in urls)}"
    initialise(url)
    return url


def _pairs(locks: Leasehold, pairs: int) -> float:
    lock, began = locks.lock("free", ttl=30), boot_clock()
    for _ in range(pairs):
        with lock:
            pass
    return boot_clock() - began


# L6: nobody starves


def longest_wait(url: str, waiters: int, turns: int, namespace: str = "") -> float:
    """The longest wait of all, in fair shares: what everybody would wait for if all waited for the same time."""
    waits: list[float] = []
    with Leasehold(url, namespace=namespace) as locks:
        lock = locks.lock("wanted", wait=120)

        def work() -> None:
            for _ in range(turns):
                asked = boot_clock()
                with lock:
                    waits.append(boot_clock() - asked)

        threads = [threading.Thread(target=work) for _ in range(waiters)]
        began = boot_clock()
        with lock:  # all of them queue before the first is served
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        fair_share = (boot_clock() - began) / turns
    if len(waits) != waiters * turns:
        raise RuntimeError(f"{waiters * turns - len(waits)} were never served")
    return max(waits) / fair_share


def nobody_starves() -> Seen:
    """L6, on every engine."""
    engines = ("sqlite", "redis", "postgresql", "mysql", "etcd", "zookeeper", "consul")
    with private_places(engines) as (places, missing):
        if missing:
            raise RuntimeError(missing[0])
        return _worst({place.engine: longest_wait(place.on, 50, 10) for place in places}, 10.0, "fair shares")


# C3: nothing stays behind


def everything_on(place: Place) -> int:
    """How many keys, or rows, there are."""
    if place.speaks_redis:
        with BareSocket(place.on) as server:
            return len(list(server.scan("*")))
    with contextlib.closing(sqlite3.connect(lease_file(place.on).path)) as connection:
        tables = [name for [name] in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)  # noqa: S608


def left_behind(place: Place, tries: int) -> int:
    """How much more there is after so many attempts in vain; one in twenty of them waits."""
    with Leasehold(place.on, namespace=place.namespace) as locks, locks.lock("held"):
        before = everything_on(place)
        for number in range(tries):
            if locks.lock("held").try_acquire() is not None:
                raise RuntimeError("a name that is held was granted")
            if number % 20 == 0:
                with contextlib.suppress(NotAcquired):
                    locks.lock("held", wait=0.002).acquire()  # noqa: LH130 - nothing is done under it
        return everything_on(place) - before


def nothing_left() -> Seen:
    """C3, on a file and on Redis; the contract suite asks it of all engines, with fewer attempts."""
    with private_places() as (places, missing):
        if missing:
            raise RuntimeError(missing[0])
        left = {place.engine: left_behind(place, 10_000) for place in places}
    text = ", ".join(f"{count} on {engine}" for engine, count in left.items())
    return Seen(f"left by 10,000 attempts in vain: {text}", not any(left.values()), str(sum(left.values()) or ""))


# C4: nothing grows


def endured() -> Seen:
    """C4, but for ten minutes: only a day shows all of it."""
    with private_places() as (places, missing):
        if missing:
            raise RuntimeError(missing[0])
        verdicts = endure(places, ENDURED_FOR)
    text = f"in {ENDURED_FOR / 60:.0f} minutes instead of a day, on {'; '.join(map(str, verdicts))}"
    failed = [str(verdict) for verdict in verdicts if not verdict.is_good]
    return Seen(text, False if failed else None, "; ".join(failed))


# R6, F1: counted elsewhere


def histories() -> Seen:
    """R6: explore ten thousand histories."""
    began = time.monotonic()
    command = [sys.executable, "-m", "leasehold.sim", "--histories", "10000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    seconds = time.monotonic() - began
    text = f"10,000 histories in {seconds:.0f} s on {os.cpu_count()} cores, {'some' if done.returncode else 'none'}"
    text += " with a violation; the 5,000,000 are still to be run"
    return Seen(text, False if done.returncode else None, "what make sim shows" if done.returncode else "")


def bad_input() -> Seen:
    """F1: the fuzzed inputs of every run of the tests, and those of a night."""
    files = ("tests/core/test_bad_input.py", "tests/engines/test_redis_target.py", "tests/cli/test_fuzz.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "tests/serve/test_fuzz.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    last = done.stdout.strip().splitlines()[-1]
    text = f"2,050,000 values, 2,500 URLs and command lines, 600 requests: {last}"
    return Seen(text, False if done.returncode else None, last if done.returncode else "")


# F5: interrupted everywhere


def points_interrupted(locks: Leasehold) -> list[str]:
    """Use a lock again and again, interrupted one bytecode later each time, until one use gets through: the names."""
    names: list[str] = []
    with locks.lock("warm", ttl=TTL):
        pass
    while True:
        name, ctrl_c = f"interrupted-{len(names)}", CtrlC(len(names))

        def use(name: str = name) -> None:
            with locks.lock(name, ttl=TTL):
                pass

        with contextlib.suppress(KeyboardInterrupt):
            ctrl_c.run(use)
        if not ctrl_c.struck:
            return names
        names.append(name)


def interruptions() -> Seen:
    """F5, in blocking code on a file and on Redis: every point of a `with` block, and what is still held afterwards."""
    said, held = [], 0
    with private_places() as (places, missing):
        if missing:
            raise RuntimeError(missing[0])
        for place in places:
            with Leasehold(place.on, namespace=place.namespace) as locks:
                names = points_interrupted(locks)
                time.sleep(TTL + 0.5)
                stuck = 0
                for name in names:
                    lease = locks.lock(name, ttl=TTL).try_acquire()
                    stuck += lease is None
                    if lease is not None:
                        lease.release()
            said.append(f"{len(names):,} points on {place.engine}, {stuck} names held after the TTL and 0.5 s")
            held += stuck
    return Seen("; ".join(said), held == 0, str(held or ""))


def _worst(seen: dict[str, float], bound: float, unit: str) -> Seen:
    text = ", ".join(f"{engine} {value:.2f}" for engine, value in seen.items()) + f" {unit}"
    engine, worst = max(seen.items(), key=lambda one: one[1])
    over = worst - bound
    return Seen(text, over <= 0, f"{over:.2f} {unit} on {engine}" if over > 0 else "")


MEASURES: dict[str, Callable[[], Seen]] = {
    "R4": told_in_time,
    "R6": histories,
    "L2": engine_back,
    "L3": waits_kept,
    "L5": minority_down,
    "L6": nobody_starves,
    "C3": nothing_left,
    "C4": endured,
    "F1": bad_input,
    "F5": interruptions,
}
