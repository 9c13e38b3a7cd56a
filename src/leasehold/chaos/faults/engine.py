"""What happens to the engine's own servers: they are restarted, frozen, cut from power, or lose their leader."""

from __future__ import annotations

import signal
import time
from typing import Any, ClassVar, Final

from leasehold.chaos.faults.base import BaseFault, frozen, one_or_all, told, untouched
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.site import Server, Site

NOT_OURS = (
    "the engine's servers are not this run's own, so they cannot be stopped (start the run with servers of its own)"
)

NO_REPLICA = "there is no replica that could take over: it takes Redis or Valkey with two members, of the run's own"
LAG: Final = 0.3
"""TTLs for which the primary goes on without its replica."""


class ServerFault(BaseFault):
    """Strikes servers that this run has started."""

    def missing(self, site: Site) -> str | None:
        """It needs servers."""
        return None if site.servers else NOT_OURS

    def running(self, site: Site) -> list[Server]:
        """Servers that run and that no other fault has in its hands."""
        return [server for server in untouched(site, site.servers) if server.pids]

    def servers(self) -> list[Any]:
        """Those in the hands of this fault."""
        return self._taken


def names(servers: list[Server]) -> dict[str, Any]:
    """What is said of them in the history."""
    return {"at": ", ".join(server.name for server in servers) or None}


class EngineRestart(ServerFault):
    """A crash or a stop in good order; then a start on what was kept."""

    name: ClassVar[str] = "engine-restart"
    summary: ClassVar[str] = "a server of the engine, or all, is killed, or stopped in good order, and started again"
    lasts: ClassVar[float] = 0.4

    def strike(self, site: Site) -> dict[str, Any]:
        """End it."""
        hard = site.chance.random() < 0.5
        mine = self.take(site, one_or_all(site, self.running(site)))
        for server in mine:
            server.stop(hard=hard)
        return {**names(mine), "how": "killed" if hard else "stopped"}

    def put_right(self) -> None:
        """Start it."""
        started(self.servers())


class LeaderKill(ServerFault):
    """The leader of a cluster dies, and the others elect another."""

    name: ClassVar[str] = "leader-kill"
    summary: ClassVar[str] = "the leader of the cluster is killed (SIGKILL), and comes back later"
    lasts: ClassVar[float] = 1.5

    def missing(self, site: Site) -> str | None:
        """It needs a cluster."""
        if not site.servers:
            return NOT_OURS
        return None if len(site.servers) > 2 else "there is no leader to kill: the engine has fewer than three servers"

    def strike(self, site: Site) -> dict[str, Any]:
        """Kill the leader, if there is one at the moment."""
        mine = self.take(site, [server for server in self.running(site) if server.leads()][:1])
        for server in mine:
            server.stop(hard=True)
        return names(mine)

    def put_right(self) -> None:
        """Start it."""
        started(self.servers())


class EnginePause(ServerFault):
    """The engine hangs: connections stay open, nobody is answered."""

    name: ClassVar[str] = "engine-pause"
    summary: ClassVar[str] = "a server of the engine, or all, is frozen (SIGSTOP) past the TTL, then goes on"
    lasts: ClassVar[float] = 1.6

    def __init__(self) -> None:
        """Nothing is frozen yet."""
        super().__init__()
        self._pids: list[int] = []

    def strike(self, site: Site) -> dict[str, Any]:
        """Freeze it with all its processes: the main one first, so that no new one comes to be that runs on."""
        mine = self.take(site, one_or_all(site, self.running(site)))
        for server in mine:
            while new := [pid for pid in server.pids if pid not in self._pids]:
                self._pids += frozen(new)
        return names(mine)

    def put_right(self) -> None:
        """Let it go on."""
        still = {pid for server in self.servers() for pid in server.pids}
        for pid in self._pids:
            if pid in still:
                told(pid, signal.SIGCONT)
        self._pids.clear()


class PowerLoss(ServerFault):
    """The host of the engine loses power: what was not synced is gone."""

    name: ClassVar[str] = "power-loss"
    summary: ClassVar[str] = "a server is killed (SIGKILL), what it never synced is dropped, and it starts on the rest"
    lasts: ClassVar[float] = 0.4

    def missing(self, site: Site) -> str | None:
        """It needs servers whose syncs are known."""
        if not site.servers:
            return NOT_OURS
        if any(server.drops_unsynced for server in site.servers):
            return None
        return (
            f"what a {site.servers[0].engine} server has synced is not known: it is for Redis and Valkey, which only "
            "append, on Linux with a C compiler; elsewhere it takes a disk that can be cut from power"
        )

    def strike(self, site: Site) -> dict[str, Any]:
        """Kill it, and drop what was not synced."""
        mine = self.take(site, [server for server in self.running(site) if server.drops_unsynced][:1])
        dropped = 0
        for server in mine:
            server.stop(hard=True)
            dropped += server.drop_unsynced()
        return {**names(mine), "bytes dropped": dropped}

    def put_right(self) -> None:
        """Start it."""
        started(self.servers())


class FailOver(ServerFault):
    """The primary dies, and its replica takes its place without what the primary granted last."""

    name: ClassVar[str] = "failover"
    summary: ClassVar[str] = "the primary dies, and a replica that lags behind takes over, without the last grants"
    lasts: ClassVar[float] = 1.0
    pauses_holders: ClassVar[bool] = True  # a lease that the replica never heard of is as good as revoked

    def missing(self, site: Site) -> str | None:
        """It needs a replica."""
        if not site.servers:
            return NOT_OURS
        return None if _pair(site.servers) else NO_REPLICA

    def strike(self, site: Site) -> dict[str, Any]:
        """Let the replica lag, kill the primary, and lead clients to the replica."""
        pair = sorted(_pair(self.running(site)), key=lambda server: not server.leads())
        if len(pair) < 2 or not pair[0].leads() or not pair[1].is_in_step():
            return {"at": None}
        primary, replica = self.take(site, pair)
        began = time.monotonic()
        replica.stop_following()
        time.sleep(LAG * site.ttl)
        if site.chance.random() < 0.5:
            self.have_one_cling(site)  # to a lease that the replica does not know
        primary.stop(hard=True)
        lag = time.monotonic() - began
        replica.take_over(primary)
        return {"at": primary.name, "promoted": replica.name, "lag": round(lag, 3)}

    def put_right(self) -> None:
        """Start the old primary, as a replica."""
        started(self.servers())


def _pair(servers: list[Server]) -> list[RedisServer]:
    return [server for server in servers if isinstance(server, RedisServer) and server.front is not None]


class FullDisk(ServerFault):
    """No write to a file succeeds. Some engines refuse writes then, others end."""

    name: ClassVar[str] = "full-disk"
    summary: ClassVar[str] = "each write of a server to a file fails (ENOSPC), then there is room again"
    lasts: ClassVar[float] = 1.0

    def missing(self, site: Site) -> str | None:
        """It needs servers whose writes pass through libc."""
        if not site.servers:
            return NOT_OURS
        if any(server.disk for server in site.servers):
            return None
        return (
            f"the disk of a {site.servers[0].engine} server cannot be made to look full here: that takes Linux, a C "
            "compiler and a server that writes through libc (programs in Go do not, and MariaDB may map its log)"
        )

    def strike(self, site: Site) -> dict[str, Any]:
        """Fill it."""
        mine = self.take(site, [server for server in self.running(site) if server.disk])
        for server in mine:
            if server.disk:
                server.disk.fill(True)
        return names(mine)

    def put_right(self) -> None:
        """Make room, and start those that ended over it or do not find back."""
        for server in self.servers():
            server.disk.fill(False)
            if not server.answers():
                server.stop(hard=True)
        started(self.servers())


def started(servers: list[Any]) -> None:
    """Start those that do not run, all before any is waited for: one of a cluster answers nobody alone."""
    ended = [server for server in servers if not server.pids]
    for server in ended:
        server.launch()
    for server in ended:
        server.wait()
