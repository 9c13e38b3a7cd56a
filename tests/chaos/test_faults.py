"""Each fault does what it says, to real processes and real servers, and is put right by mending it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from leasehold import Leasehold, LeaseLost
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.faults.base import BaseFault
from leasehold.chaos.servers import started
from leasehold.chaos.servers.process import OwnServer
from leasehold.chaos.servers.shim import Shim
from leasehold.chaos.site import Doing, Site, Worker
from leasehold.testing.proxy import Proxy

TTL = 1.0
MEMORY = Path("/dev/shm")
TOY = Path(__file__).with_name("toy_worker.py")
PING, PONG = b"PING\r\n", b"+PONG\r\n"


class Toy:
    """A worker process, as a fault sees it."""

    def __init__(self, folder: Path, name: str, url: str, clock: Shim) -> None:
        self.name, self._folder = name, folder
        self._command = [sys.executable, str(TOY), url, str(TTL), str(folder), name]
        self._environment = {**os.environ, **clock.environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.restart()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @pid.setter
    def pid(self, _pid: int) -> None:
        raise AssertionError("a fault does not set it")

    def restart(self) -> None:
        self.end()
        self._process = subprocess.Popen(self._command, env=self._environment)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def doing(self) -> Doing:
        with contextlib.suppress(FileNotFoundError):
            said = (self._folder / f"{self.name}.doing").read_text().strip()
            if said in ("idle", "waits", "holds", "gap"):
                return cast(Doing, said)
        return "idle"

    def turns(self) -> list[tuple[int, float]]:
        """The token and the wall clock of each turn that it had."""
        path = self._folder / f"{self.name}.log"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(int(token), float(clock)) for token, clock in (line.split() for line in lines)]

    def has_another_turn(self) -> bool:
        before = len(self.turns())
        return happens(lambda: len(self.turns()) > before)

    def state(self) -> str:
        """As the kernel calls it: T is stopped, Z is over."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]


def happens(condition: Callable[[], object], within: float = 30.0) -> bool:
    give_up_at = time.monotonic() + within
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as path:
        yield Path(path)


@contextlib.contextmanager
def a_site(folder: Path, *, workers: int = 2, durable: bool = True) -> Iterator[Site]:
    """Redis, so many workers, each with a proxy of its own and all with a clock that can be moved."""
    with contextlib.ExitStack() as stack:
        url, servers = stack.enter_context(started("redis", folder, durable=durable))
        port = cast(OwnServer, servers[0]).port
        proxies = [stack.enter_context(Proxy("127.0.0.1", port)) for _ in range(workers)]
        clock = Shim(folder, "workers")
        toys = []
        for number, proxy in enumerate(proxies):
            toy = Toy(folder, f"w{number}", f"redis://127.0.0.1:{proxy.port}", clock)
            stack.callback(toy.end)
            toys.append(toy)
        site = Site(url, TTL, [*toys], proxies, servers, random.Random(1), worker_clock=clock)
        assert all(toy.has_another_turn() for toy in toys)
        yield site


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with a_site(folder) as site:
        yield site


def struck(site: Site, name: str) -> tuple[BaseFault, dict[str, object]]:
    """A fault of this name that has struck."""
    fault = FAULTS[name]()
    assert fault.missing(site) is None
    said = fault.strike(site)
    assert said["at"] is not None
    return fault, said


def toy(site: Site, name: object) -> Toy:
    [found] = [worker for worker in site.workers if worker.name == name]
    return cast(Toy, found)


def all_go_on(site: Site) -> bool:
    return all(cast(Toy, worker).has_another_turn() for worker in site.workers)


class Line:
    """One connection, by hand."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def ask(self, words: bytes = PING, *, within: float = 10.0) -> bytes | str:
        self._socket.settimeout(within)
        try:
            self._socket.sendall(words)
            return self._socket.recv(4096) or "closed"
        except TimeoutError:
            return "silence"
        except OSError:
            return "reset"

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def line() -> Iterator[Callable[[int], Line]]:
    with contextlib.ExitStack() as stack:

        def opened(port: int) -> Line:
            return stack.enter_context(contextlib.closing(Line(port)))

        yield opened


# Workers


@pytest.mark.parametrize(("name", "doing"), [("pause", {"holds", "gap"}), ("pause-in-gap", {"gap"})])
def test_a_holder_is_frozen_and_goes_on(name: str, doing: set[str], site: Site) -> None:
    fault, said = struck(site, name)
    frozen = toy(site, said["at"])
    assert said["doing"] in doing
    assert frozen.state() == "T"
    [other] = [cast(Toy, worker) for worker in site.workers if worker is not frozen]
    # Its lease runs out, and somebody else gets a higher token; then it writes with its own.
    assert other.has_another_turn()
    assert frozen.state() == "T"
    overtaken_by = other.turns()[-1][0]
    fault.mend(site)
    assert frozen.has_another_turn()
    assert min(token for token, _ in frozen.turns()[-2:]) < overtaken_by
    assert site.struck == []


def test_a_holder_is_killed_and_another_comes(site: Site) -> None:
    fault, said = struck(site, "kill")
    killed = toy(site, said["at"])
    pid = killed.pid
    assert happens(lambda: killed.state() == "Z")
    fault.mend(site)
    assert killed.pid != pid
    assert all_go_on(site)


def test_a_dead_host_says_nothing_to_the_engine(site: Site, line: Callable[[int], Line]) -> None:
    before = {toy(site, worker.name).name: connections(site, worker.name) for worker in site.workers}
    fault, said = struck(site, "host-death")
    dead = toy(site, said["at"])
    assert happens(lambda: dead.state() == "Z")
    # The kernel has closed its connections long before the other had two turns.
    [other] = [cast(Toy, worker) for worker in site.workers if worker is not dead]
    assert other.has_another_turn()
    assert other.has_another_turn()
    assert connections(site, dead.name) >= before[dead.name] > 0
    fault.mend(site)
    assert all_go_on(site)
    assert site.struck == []


def connections(site: Site, label: str) -> int:
    """How many the engine has from somebody."""
    with contextlib.closing(Line(cast(OwnServer, site.servers[0]).port)) as one:
        listed = one.ask(b"CLIENT LIST\r\n")
        assert isinstance(listed, bytes)
        return listed.count(f"name=leasehold:{label}".encode()) or listed.count(label.encode())


# The engine


def test_the_engine_is_restarted(site: Site) -> None:
    [server] = site.servers
    before = server.pids
    for _ in range(4):  # by either signal
        fault, said = struck(site, "engine-restart")
        assert said["signal"] in ("SIGKILL", "SIGTERM")
        assert server.pids == []
        fault.mend(site)
        assert server.pids != before
        assert all_go_on(site)


def test_the_engine_hangs_with_all_its_processes(folder: Path) -> None:
    with started("postgresql", folder) as (url, servers):
        [server] = servers
        site = Site(url, TTL, [], servers=servers)
        fault, _ = struck(site, "engine-pause")
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in server.pids]
        assert len(states) > 3
        assert set(states) <= {"T", "Z"}
        assert not server.answers()
        fault.mend(site)
        assert happens(server.answers)


def test_power_is_lost_and_with_it_what_was_not_synced(folder: Path) -> None:
    with a_site(folder, durable=False) as site:

        def drops_something() -> bool:
            fault, said = struck(site, "power-loss")
            assert site.servers[0].pids == []
            fault.mend(site)
            assert all_go_on(site)
            return bool(said["bytes dropped"])

        assert happens(drops_something)


def test_nothing_is_lost_where_everything_is_synced(site: Site) -> None:
    fault, said = struck(site, "power-loss")
    assert said["bytes dropped"] == 0
    fault.mend(site)
    assert all_go_on(site)


def test_the_leader_is_killed_and_another_leads(folder: Path) -> None:
    with started("etcd", folder, members=3) as (url, servers):
        site = Site(url, TTL, [], servers=servers)
        assert happens(lambda: any(server.leads() for server in servers))
        fault, said = struck(site, "leader-kill")
        [killed] = [server for server in servers if server.name == said["at"]]
        assert killed.pids == []
        assert happens(lambda: any(server.leads() for server in servers))
        fault.mend(site)
        assert killed.answers()


@pytest.mark.parametrize("engine", ["redis", "postgresql"])
def test_a_full_disk_lets_no_grant_be_made_and_room_helps(engine: str, folder: Path) -> None:
    with started(engine, folder) as (url, servers), Leasehold(url, request_timeout=2.0) as locks:
        site = Site(url, TTL, [], servers=servers)
        with locks.lock("orders", ttl=2, wait=20) as lease:
            before = lease.token
        fault, _ = struck(site, "full-disk")
        with pytest.raises(Exception, match=r"."), locks.lock("orders", ttl=2, wait=1):
            pass
        fault.mend(site)
        with locks.lock("orders", ttl=2, wait=30) as lease:
            assert lease.token > before


# The network


@pytest.fixture
def wires(folder: Path) -> Iterator[Site]:
    """Redis and two proxies, and nobody at work."""
    with contextlib.ExitStack() as stack:
        url, servers = stack.enter_context(started("redis", folder))
        port = cast(OwnServer, servers[0]).port
        proxies = [stack.enter_context(Proxy("127.0.0.1", port)) for _ in range(2)]
        yield Site(url, 0.2, [], proxies, servers, AlwaysAll())


class AlwaysAll(random.Random):
    """Chance that strikes everybody."""

    def random(self) -> float:
        return 0.0


def test_a_partition_is_silent_both_ways(wires: Site, line: Callable[[int], Line]) -> None:
    old = line(wires.proxies[0].port)
    assert old.ask() == PONG
    fault, _ = struck(wires, "partition")
    assert old.ask(within=0.3) == "silence"
    assert line(wires.proxies[1].port).ask(within=0.3) == "silence"
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


def test_requests_get_lost(wires: Site, line: Callable[[int], Line]) -> None:
    direct, one = line(cast(OwnServer, wires.servers[0]).port), line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, "partition-requests")
    assert one.ask(b"SET lost 1\r\n", within=0.3) == "silence"
    assert direct.ask(b"EXISTS lost\r\n") == b":0\r\n"
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


def test_replies_get_lost_of_requests_that_took_effect(wires: Site, line: Callable[[int], Line]) -> None:
    direct, one = line(cast(OwnServer, wires.servers[0]).port), line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, "partition-replies")
    assert one.ask(b"SET done 1\r\n", within=0.3) == "silence"
    assert direct.ask(b"EXISTS done\r\n") == b":1\r\n"
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


@pytest.mark.parametrize(("name", "least"), [("latency", 2 * 0.02), ("late-replies", 1.2 * 0.2)])
def test_packets_are_late(name: str, least: float, wires: Site, line: Callable[[int], Line]) -> None:
    one = line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, name)
    began = time.monotonic()
    assert one.ask() == PONG
    assert time.monotonic() - began >= least
    fault.mend(wires)
    assert one.ask() == PONG
    assert wires.struck == []


def test_connections_are_reset(wires: Site, line: Callable[[int], Line]) -> None:
    one = line(wires.proxies[0].port)
    assert one.ask() == PONG
    fault, _ = struck(wires, "resets")
    assert one.ask() == "reset"
    # One more, with a reply under way.
    another = line(wires.proxies[0].port)
    assert "reset" in [another.ask() for _ in range(5)]
    fault.mend(wires)
    assert line(wires.proxies[0].port).ask() == PONG


def test_the_connections_of_a_holder_are_aimed_at(site: Site) -> None:
    for _ in range(20):
        fault, said = struck(site, "partition")
        hit = [proxy for proxy in site.proxies if any(proxy is one for one in site.struck)]
        if said["at"] != "all":
            worker = toy(site, said["at"])
            assert hit == site.proxies_of(worker)
            assert worker.doing() in ("holds", "gap")
            assert len(hit) == 1
            fault.mend(site)
            break
        fault.mend(site)
    else:
        pytest.fail("never one alone")
    assert all_go_on(site)


# Clocks


def engine_time(port: int) -> float:
    with contextlib.closing(Line(port)) as one:
        answer = one.ask(b"TIME\r\n")
    assert isinstance(answer, bytes)
    _, _, seconds, _, microseconds, _ = answer.decode().split("\r\n")
    return int(seconds) + int(microseconds) / 1e6


def test_the_clock_of_the_engine_jumps_there_and_back(wires: Site) -> None:
    port, seen = cast(OwnServer, wires.servers[0]).port, set[float]()
    wires.chance = random.Random(1)
    for _ in range(20):
        fault, said = struck(wires, "engine-clock-jump")
        by = cast(float, said["seconds"])
        assert abs(by) == pytest.approx(5 * wires.ttl)
        assert engine_time(port) - time.time() == pytest.approx(by, abs=0.4)
        seen.add(by)
        fault.mend(wires)
        assert engine_time(port) - time.time() == pytest.approx(0, abs=0.4)
    assert len(seen) == 2


def test_the_clock_of_the_engine_strobes(wires: Site) -> None:
    port = cast(OwnServer, wires.servers[0]).port
    fault, said = struck(wires, "engine-clock-strobe")
    by = cast(float, said["seconds"])
    assert happens(lambda: abs(engine_time(port) - time.time() - by) < 0.4)
    assert happens(lambda: abs(engine_time(port) - time.time()) < 0.4)
    assert happens(lambda: abs(engine_time(port) - time.time() - by) < 0.4)
    fault.mend(wires)
    assert engine_time(port) - time.time() == pytest.approx(0, abs=0.4)


@pytest.mark.parametrize("name", ["client-clock-jump", "client-clock-strobe"])
def test_the_clock_of_the_workers_is_moved_and_put_right(name: str, site: Site) -> None:
    worker = cast(Toy, site.workers[0])
    fault, said = struck(site, name)
    by = cast(float, said["seconds"])

    def shows(offset: float) -> bool:
        return worker.has_another_turn() and abs(worker.turns()[-1][1] - time.time() - offset) < 2.0

    assert happens(lambda: shows(by))
    if name.endswith("strobe"):
        assert happens(lambda: shows(0.0))
        assert happens(lambda: shows(by))
    fault.mend(site)
    assert happens(lambda: shows(0.0))
    assert all_go_on(site)


# Revocation, and what all have in common


def test_a_lease_is_ended_by_force(wires: Site) -> None:
    with Leasehold(wires.url) as locks, pytest.raises(LeaseLost), locks.lock("orders", ttl=60):
        fault, said = struck(wires, "revocation")
        assert said["at"] == "orders"
        status = locks.status("orders")
        assert status is not None
        assert not status.holders
        fault.mend(wires)
        with Leasehold(wires.url) as others, others.lock("orders", ttl=60, wait=5):
            pass


def test_an_engine_that_is_away_revokes_nothing(wires: Site) -> None:
    wires.servers[0].stop(hard=True)
    assert FAULTS["revocation"]().strike(wires) == {"at": None, "error": "EngineUnavailable"}


class Nobody:
    """A worker, and that is all there is."""

    name = "w1"
    pid = 0

    def doing(self) -> Doing:
        return "idle"

    def restart(self) -> None:
        raise AssertionError("nobody was killed")


def test_each_fault_says_what_is_missing() -> None:
    bare = Site("redis://127.0.0.1:1", TTL, [Nobody()], subject="redis-py")
    without = {name for name, kind in FAULTS.items() if kind().missing(bare) is None}
    assert without == {"pause", "pause-in-gap", "kill"}
    for kind in FAULTS.values():
        assert kind.summary
        assert kind.lasts > 0
        words = kind().missing(bare)
        assert words is None or len(words) > 30


def test_faults_that_an_engine_cannot_have_say_why(folder: Path) -> None:
    with started("etcd", folder) as (url, servers):
        site = Site(url, TTL, [Nobody()], servers=servers)
        for name, words in {
            "power-loss": "Redis and Valkey",
            "full-disk": "programs in Go",
            "engine-clock-jump": "cannot be moved",
            "leader-kill": "fewer than three",
        }.items():
            assert words in (FAULTS[name]().missing(site) or "")


def test_what_one_fault_has_in_its_hands_others_leave_alone(wires: Site) -> None:
    first, second = FAULTS["engine-pause"](), FAULTS["engine-restart"]()
    [server] = wires.servers
    pids = server.pids
    first.strike(wires)
    assert second.strike(wires)["at"] is None
    second.mend(wires)
    assert server.pids == pids
    assert len(wires.struck) == 1
    first.mend(wires)
    assert happens(server.answers)
    partition, latency = FAULTS["partition"](), FAULTS["latency"]()
    partition.strike(wires)
    assert latency.strike(wires)["at"] is None
    latency.mend(wires)
    with contextlib.closing(Line(wires.proxies[0].port)) as one:
        assert one.ask(within=0.3) == "silence"
    partition.mend(wires)
    a_worker: Worker = Nobody()
    busy = Site("", 0.05, [a_worker], struck=[a_worker])
    assert FAULTS["pause"]().strike(busy) == {"at": None}
    assert FAULTS["kill"]().strike(busy) == {"at": None}
