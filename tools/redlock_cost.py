"""What a lease on five servers costs, beside its scripts, and beside the least that a Redlock does, on bare sockets.

    python tools/redlock_cost.py

All three take and release a free name, in turns, on five Redis servers that it starts on loopback and ends again. They
send to all five at once and go on when three have answered.
"""

from __future__ import annotations

import hashlib
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hiredis

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.redis_server import RedisServer
from tests.support.redlock_servers import running_quorum

from leasehold import Leasehold
from leasehold.core.quorum import AskGrant, AskRelease, majority_of
from leasehold.engines.redlock_scripts import request_for
from leasehold.wires.redis_replies import command

SERVERS, ROUNDS, PAIRS = 5, 12, 150
HOLDER = "0123456789abcdef0123456789abcdef"
COMPARE_AND_DELETE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class BareSockets:
    """Sends to all, and waits for a majority; replies that come later are skipped."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self._poll = select.poll()
        self._sockets = [socket.create_connection(("127.0.0.1", server.port)) for server in servers]
        self._readers: dict[int, hiredis.Reader] = {}
        self._owed: dict[int, int] = {}
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(one, select.POLLIN)
            self._readers[one.fileno()], self._owed[one.fileno()] = hiredis.Reader(), 0

    def ask(self, requests: list[bytes]) -> None:
        """One request to each server."""
        for one, request in zip(self._sockets, requests, strict=True):
            one.send(request)
        by_number = {one.fileno(): one for one in self._sockets}
        waiting = set(by_number)
        while len(by_number) - len(waiting) < majority_of(len(by_number)):
            for number, _ in self._poll.poll():
                reader = self._readers[number]
                reader.feed(by_number[number].recv(65536))
                while (reply := reader.gets()) is not False:
                    assert not isinstance(reply, Exception), reply
                    if self._owed[number]:
                        self._owed[number] -= 1
                    else:
                        waiting.discard(number)
        for number in waiting:
            self._owed[number] += 1


def least(servers: list[RedisServer]) -> Callable[[], None]:
    """`SET NX PX` and a compare-and-delete: no token, no queue."""
    sockets = BareSockets(servers)
    digest = hashlib.sha1(COMPARE_AND_DELETE.encode(), usedforsecurity=False).hexdigest()
    for server in servers:
        server.ask("SCRIPT", "LOAD", COMPARE_AND_DELETE)
    take = [command("SET", "least", HOLDER, "NX", "PX", 30000)] * SERVERS
    give = [command("EVALSHA", digest, 1, "least", HOLDER)] * SERVERS

    def pair() -> None:
        sockets.ask(take)
        sockets.ask(give)

    return pair


def scripts(servers: list[RedisServer]) -> Callable[[], None]:
    """The engine's own requests, and nothing around them."""
    sockets = BareSockets(servers)
    suffixes = []
    for server in servers:
        run = server.ask("INFO", "server").partition(b"run_id:")[2][:40]
        added = (run + b" 0", b"65000000 channel")
        suffixes.append(b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in added))
    number = 0

    def pair() -> None:
        nonlocal number
        number += 1
        grant = AskGrant("scripts", HOLDER, number, 30.0, time.time_ns() // 1000)
        for request in (request_for(grant, ""), request_for(AskRelease("scripts", HOLDER), "")):
            sockets.ask([request + suffix for suffix in suffixes])

    return pair


def main() -> int:
    """Measure, and print the medians."""
    with running_quorum(SERVERS, durable=False) as quorum, Leasehold(quorum.url) as locks:
        lock = locks.lock("engine", ttl=30, wait=1)

        def engine() -> None:
            with lock:
                pass

        engine()
        contestants = {
            "SET NX PX": least(quorum.servers),
            "the scripts": scripts(quorum.servers),
            "the engine": engine,
        }
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(ROUNDS):
            for name, pair in contestants.items():
                began = time.perf_counter()
                for _ in range(PAIRS):
                    pair()
                times[name].append((time.perf_counter() - began) / PAIRS * 1e6)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, median in medians.items():
        ratios = [f"{median / other:5.2f} of {of}" for of, other in medians.items()]
        print(f"{name:12} {median:6.0f} µs", *ratios, sep="  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
