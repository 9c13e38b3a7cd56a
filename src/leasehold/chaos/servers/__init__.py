"""Servers of a run's own: started in a folder, on free ports of the loopback, and ended by process id.

`started` is all that a run needs:

    with started("redis", folder) as (url, servers):
        ...
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from leasehold import Leasehold
from leasehold.chaos.servers import programs
from leasehold.chaos.servers.clusters import ConsulServer, EtcdServer, ZooKeeperServer
from leasehold.chaos.servers.process import Member, OwnServer
from leasehold.chaos.servers.programs import NoServer
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.servers.sql import MariadbServer, MysqlServer, PostgresServer
from leasehold.chaos.site import Server
from leasehold.errors import quoted
from leasehold.testing.proxy import Proxy

__all__ = ["CLUSTERS", "ENGINES", "NoServer", "find", "started"]

_Kind = type[RedisServer | PostgresServer | MariadbServer | MysqlServer | EtcdServer | ConsulServer | ZooKeeperServer]
_KINDS: Final[Mapping[str, _Kind]] = {
    "redis": RedisServer,
    "valkey": RedisServer,
    "postgresql": PostgresServer,
    "mariadb": MariadbServer,
    "mysql": MysqlServer,
    "etcd": EtcdServer,
    "consul": ConsulServer,
    "zookeeper": ZooKeeperServer,
}
_RUNS_ON: Final[Mapping[str, str]] = {
    "redlock": "redis",
    "postgresql+session": "postgresql",
    "mariadb+session": "mariadb",
    "mysql+session": "mysql",
}
"""Engines that have no server of their own, and whose they use: the scheme of the URL is all that differs."""
ENGINES: Final = (*_KINDS, *_RUNS_ON)
"""Whose servers can be started."""
CLUSTERS: Final = ("etcd", "consul", "zookeeper", "redlock")
"""Those that may have several members."""
PAIRS: Final = ("redis", "valkey")
"""Those that may have two members: a primary, and a replica that follows it."""
MAJORITY: Final = 3
"""The least number of servers of which one may be away."""
LONGEST_TTL: Final = 5.0
"""Of the leases of a redlock, which keeps out new servers for that long and 5 s more."""
LET_IN_WITHIN: Final = 60.0
IN_STEP_WITHIN: Final = 60.0


def find(engine: str) -> Path:
    """The program of an engine's server, or `NoServer`."""
    return programs.find(_RUNS_ON.get(engine, engine))


@contextlib.contextmanager
def started(
    engine: str, folder: Path, *, members: int = 1, durable: bool = True, witness: bool = False
) -> Iterator[tuple[str, list[Server]]]:
    """Run the engine's servers for as long as the block: their URL, and the servers.

    Everything that they write is in this folder, which must exist. `durable` is about Redis and Valkey: False syncs
    once a second, as they do by default, so that a power loss loses what was answered before. With a `witness` each
    write is seen, at some cost, so that disks can be full and lose what was not synced.
    """
    _check(engine, members)
    runs_on = _RUNS_ON.get(engine, engine)
    names = ["server"] if members == 1 else [f"server-{number}" for number in range(1, members + 1)]
    servers: list[OwnServer] = [_KINDS[runs_on](runs_on, folder, name, durable=durable) for name in names]
    # The servers of a redlock know nothing of each other.
    together = [one for one in servers if isinstance(one, Member)] if members > 1 and engine != "redlock" else []
    for number, server in enumerate(together, 1):
        server.meet(number, {one.name: one.peer for one in together})
    with contextlib.ExitStack() as stack:
        for one in servers:
            stack.callback(one.end)
        for one in servers:
            if witness:
                one.watch_disk()
            one.prepare()
            one.launch()
        for one in servers:
            one.wait()
        for one in servers:
            one.has_settled()
        if engine in PAIRS and members > 1:
            addresses = _front_of(servers, stack)
        else:
            addresses = ",".join(one.address for one in servers)
        url = servers[0].url_at(addresses)
        if engine in _RUNS_ON:
            url = engine + url[url.index(":") :]
        if engine == "redlock":
            url += f"?longest_ttl={LONGEST_TTL:g}"
            _wait_until_let_in(url)
        yield url, [*servers]


def _check(engine: str, members: int) -> None:
    if engine not in ENGINES:
        raise NoServer(f"a server of {quoted(engine)} cannot be started here; those of {', '.join(ENGINES)} can")
    if engine in PAIRS and members > len(("primary", "replica")):
        raise NoServer(f"{engine} has a primary and one replica here, 2 members at most, not {members}")
    if members != 1 and engine not in (*CLUSTERS, *PAIRS):
        raise NoServer(f"a {engine} server stands alone; several members have {', '.join((*CLUSTERS, *PAIRS))}")
    if engine == "redlock" and members < MAJORITY:
        raise NoServer(f"redlock is a majority of Redis servers: give it {MAJORITY} members or more, not {members}")


def _front_of(servers: Sequence[OwnServer], stack: contextlib.ExitStack) -> str:
    """The address of a proxy that leads to the primary, whichever that is, once the replica has all its data."""
    pair = [one for one in servers if isinstance(one, RedisServer)]
    front = stack.enter_context(Proxy("127.0.0.1", pair[0].port))
    give_up_at = time.monotonic() + IN_STEP_WITHIN
    while not all(one.is_in_step() for one in pair):
        if time.monotonic() > give_up_at:
            raise NoServer(f"the replica did not get the data of its primary: {pair[-1].last_words()}")
        time.sleep(0.02)
    for one in pair:
        one.front = front
    return f"{front.host}:{front.port}"


def _wait_until_let_in(url: str) -> None:
    with Leasehold(url, label="chaos") as locks, locks.lock("chaos", ttl=LONGEST_TTL, wait=LET_IN_WITHIN):
        pass
