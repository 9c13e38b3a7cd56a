"""Ports of the loopback for servers that are started on purpose: nobody uses them, and nobody takes them meanwhile.

A port that the system picks may be given to the next outgoing connection too, before the server listens on it or while
it is restarted. These lie below the ports of outgoing connections, and each process has some of them to itself.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

SECOND: Final = 10_000
"""How far above its port a node of a Redis Cluster has another one."""
EACH: Final = 100
"""How many ports a process takes for itself at once; it takes as many again when most of these are in use."""
USUAL: Final = 32_768
"""From where on Linux gives ports to outgoing connections, unless it was told otherwise; other systems begin above."""


def free_port() -> int:
    """A port that nobody uses, and neither does anybody the one that is `SECOND` above it."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Several of them, all different."""
    return _own_ports().free(number)


class Ports:
    """Ports that are given in turn: each one comes again only when all others have been looked at."""

    def __init__(self, blocks: Iterable[Sequence[int]]) -> None:
        self._blocks = iter(blocks)
        self._ports: list[int] = []
        self._turn: Iterator[int] = iter(())
        self._given_in_turn = 0
        self._lock = threading.Lock()

    def free(self, number: int) -> list[int]:
        """As many that are free, all different."""
        found: list[int] = []
        with self._lock:
            while len(found) < number:
                found.append(self._another(found))
        return found

    def _another(self, found: Sequence[int]) -> int:
        while True:
            for port in self._turn:
                if port not in found and _is_free(port) and _is_free(port + SECOND):
                    self._given_in_turn += 1
                    return port
            self._begin_a_turn()

    def _begin_a_turn(self) -> None:
        given, more = self._given_in_turn, None
        # Where few are free each comes again soon, maybe before the server that it was given for listens there.
        if given < EACH // 2:
            more = next(self._blocks, None)
            self._ports += more or ()
        self._turn, self._given_in_turn = iter(self._ports), 0
        if not given and not more:
            raise RuntimeError("all ports for servers are in use; end some servers, or processes that started some")


@cache
def _own_ports() -> Ports:
    return Ports(_blocks())


def _blocks() -> Iterator[Sequence[int]]:
    """Ports that this process has for itself: the one before each block stays bound, which tells others."""
    # Where outgoing connections have nearly all ports there is no better place, and a port may be taken after all.
    first = max(min(_outgoing_from(), USUAL) - 2 * SECOND, 1024)
    for start in range(first, first + SECOND, EACH):
        sign = socket.socket()
        try:
            sign.bind(("127.0.0.1", start))
        except OSError:
            sign.close()
        else:
            sign.detach()  # bound until the process ends
            yield range(start + 1, start + EACH)


def _outgoing_from() -> int:
    """The lowest port of outgoing connections."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return USUAL


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
