"""Ports of the loopback for servers that are started on purpose: nobody uses them, and nobody takes them meanwhile.

A port that the system picks may be given to the next outgoing connection too, before the server listens on it or while
it is restarted. These lie below the ports of outgoing connections, and each process has some of them to itself.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

SECOND: Final = 10_000
"""How far above its port a node of a Redis Cluster has another one."""
EACH: Final = 100
"""How many ports a process has."""
USUAL: Final = 32_768
"""From where on Linux gives ports to outgoing connections, unless it was told otherwise; other systems begin above."""


def free_port() -> int:
    """A port that nobody uses, and neither does anybody the one that is `SECOND` above it."""
    ports = _own_ports()
    for port in itertools.islice(ports, EACH):
        if _is_free(port) and _is_free(port + SECOND):
            return port
    raise RuntimeError(f"all {EACH} ports of this process are in use; end some of its servers")


def free_ports(number: int) -> list[int]:
    """Several of them, all different."""
    return [free_port() for _ in range(number)]


@cache
def _own_ports() -> Iterator[int]:
    """The ports of this process, over and over again; the one before them stays bound, which tells others."""
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
            return itertools.cycle(range(start + 1, start + EACH))
    raise RuntimeError(f"{SECOND // EACH} processes start servers here already; wait until some have ended")


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
