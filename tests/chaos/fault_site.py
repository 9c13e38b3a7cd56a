"""A place for faults to strike: a real Redis, real workers, a proxy for each; and how to look at what they did."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast, get_args

from leasehold.chaos.addresses import addresses
from leasehold.chaos.faults import FAULTS
from leasehold.chaos.faults.base import BaseFault
from leasehold.chaos.servers import started
from leasehold.chaos.servers.shim import Shim
from leasehold.chaos.site import Doing, Site
from leasehold.testing.proxy import Proxy

TTL = 1.0
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

    def kill(self) -> None:
        self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def doing(self) -> Doing:
        with contextlib.suppress(FileNotFoundError):
            said = (self._folder / f"{self.name}.doing").read_text().strip()
            if said in get_args(Doing):
                return cast(Doing, said)
        return "idle"

    def hold_on(self, on: bool) -> None:
        told = self._folder / f"{self.name}.hold-on"
        if on:
            told.touch()
        else:
            told.unlink(missing_ok=True)

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


@contextlib.contextmanager
def a_site(folder: Path, *, workers: int = 2, members: int = 1, durable: bool = True) -> Iterator[Site]:
    """Redis, so many workers, each with a proxy of its own and all with a clock that can be moved."""
    with contextlib.ExitStack() as stack:
        url, servers = stack.enter_context(started("redis", folder, members=members, durable=durable, witness=True))
        [(_, port)] = addresses(url)
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


class AlwaysAll(random.Random):
    """Chance that strikes everybody."""

    def random(self) -> float:
        return 0.0
