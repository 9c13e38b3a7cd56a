"""Servers of a run's own: started in a folder, on free ports of the loopback, and ended by process id.

`started` is all that a run needs:

    with started("redis", folder) as (url, servers):
        ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from leasehold.chaos.servers.clusters import ConsulServer, EtcdServer, ZooKeeperServer
from leasehold.chaos.servers.process import OwnServer
from leasehold.chaos.servers.programs import NoServer, find
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.servers.sql import MariadbServer, PostgresServer
from leasehold.chaos.site import Server
from leasehold.errors import quoted

__all__ = ["CLUSTERS", "ENGINES", "NoServer", "find", "started"]

_Kind = type[RedisServer | PostgresServer | MariadbServer | EtcdServer | ConsulServer | ZooKeeperServer]
_KINDS: Final[Mapping[str, _Kind]] = {
    "redis": RedisServer,
    "valkey": RedisServer,
    "postgresql": PostgresServer,
    "mariadb": MariadbServer,
    "etcd": EtcdServer,
    "consul": ConsulServer,
    "zookeeper": ZooKeeperServer,
}
ENGINES: Final = tuple(_KINDS)
"""Whose servers can be started."""
CLUSTERS: Final = ("etcd", "consul", "zookeeper")
"""Those that may have several members."""


@contextlib.contextmanager
def started(engine: str, folder: Path, *, members: int = 1, durable: bool = True) -> Iterator[tuple[str, list[Server]]]:
    """Run the engine's servers for as long as the block: their URL, and the servers.

    Everything that they write is in this folder, which must exist. `durable` is about Redis and Valkey: False syncs
    once a second, as they do by default, so that a power loss loses what was answered before.
    """
    if engine not in ENGINES:
        raise NoServer(f"a server of {quoted(engine)} cannot be started here; those of {', '.join(ENGINES)} can")
    if members != 1 and engine not in CLUSTERS:
        raise NoServer(f"a {engine} server stands alone; several members have {', '.join(CLUSTERS)}")
    names = ["server"] if members == 1 else [f"server-{number}" for number in range(1, members + 1)]
    servers: list[OwnServer] = [_KINDS[engine](engine, folder, name, durable=durable) for name in names]
    if members > 1:
        for number, server in enumerate(servers, 1):
            server.meet(number, {one.name: one.peer for one in servers})
    try:
        for server in servers:
            server.prepare()
            server.launch()
        for server in servers:
            server.wait()
        yield servers[0].url_at(",".join(one.address for one in servers)), [*servers]
    finally:
        for server in servers:
            server.stop(hard=True)
