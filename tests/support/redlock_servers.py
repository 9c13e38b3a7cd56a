"""Quorums of the tests' own: several real Redis servers in memory, each on a free port, ended by process id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.support.redis_server import RedisServer, running
from tests.support.server_process import memory_folder

from leasehold.engines.redlock import initialise

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class QuorumOfServers:
    """Several servers, and what may happen to all of them, or to one."""

    def __init__(self, servers: list[RedisServer], query: str = "") -> None:
        self.servers, self._query = servers, query

    @property
    def url(self) -> str:
        return f"redlock://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}{self._query}"

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def restart(self) -> None:
        for server in self.servers:
            server.restart()


@contextlib.contextmanager
def running_quorum(
    count: int, *settings: str, engine: str = "redis", durable: bool = True, initialised: bool = True, query: str = ""
) -> Iterator[QuorumOfServers]:
    """Run so many servers for as long as the block."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(count):
            folder = stack.enter_context(memory_folder())
            log = DURABLE if durable else ()
            servers.append(stack.enter_context(running(RedisServer(engine, folder, *log, *settings))))
        quorum = QuorumOfServers(servers, query)
        if initialised:
            initialise(quorum.url)
        yield quorum
