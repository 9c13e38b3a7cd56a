"""What happens to the engine's own servers: they are restarted, frozen, cut from power, or lose their leader."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final, get_args

from leasehold.chaos.faults.base import BaseFault, aimed, frozen, one_or_all, told, untouched
from leasehold.chaos.servers.redis import RedisServer
from leasehold.chaos.site import Disk, Fullness, Server, Site, Worker
from leasehold.testing.boots import believe_in_boot

NOT_OURS = (
    "the engine's servers are not this run's own, so they cannot be stopped (start the run with servers of its own)"
)

NO_REPLICA = "there is no replica that could take over: it takes Redis or Valkey with two members, of the run's own"
AT_WORK_WITHIN: Final = 5.0
"""TTLs in which workers that were just started should be granted something."""
LAG: Final = 0.3
"""TTLs for which the primary goes on without its replica."""


class ServerFault(BaseFault):
    """Strikes servers that this run has started."""

    loses_answers: ClassVar[bool] = True

    def missing(self, site: Site) -> str | None:
        """It needs servers."""
        return None if site.servers else NOT_OURS

    def running(self, site: Site) -> list[Server]:
        """Servers that run and that no other fault has in its hands."""
        return [server for server in untouched(site, site.servers) if server.pids]

    def servers(self) -> list[Any]:
        """Those in the hands of this fault."""
        return self._taken

    def mend(self, site: Site) -> None:
        """Start them; whoever mends the last one waits for all: a member of a cluster answers nobody alone."""
        super().mend(site)
        if len(untouched(site, site.servers)) == len(site.servers):
            for server in site.servers:
                server.wait()


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
        launch(self.servers())


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
        launch(self.servers())


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


class DiskFault(ServerFault):
    """Strikes the disks of servers, or of all workers where the engine is a file that they write themselves."""

    def missing(self, site: Site) -> str | None:
        """It needs servers, or a file, whose writes are seen."""
        if site.file:
            return None
        if not site.servers:
            return NOT_OURS
        return None if all(server.disk for server in site.servers) else site.servers[0].unseen


class PowerLoss(DiskFault):
    """The host of the engine loses power: what was not synced is gone."""

    name: ClassVar[str] = "power-loss"
    summary: ClassVar[str] = (
        "a server, or all, is killed (SIGKILL), what it never synced is dropped, and it starts again"
    )
    lasts: ClassVar[float] = 0.4

    def __init__(self) -> None:
        """Everything runs yet."""
        super().__init__()
        self._workers: list[Worker] = []

    def strike(self, site: Site) -> dict[str, Any]:
        """Kill all that are struck before anything is dropped: no other member hears of it."""
        if site.file:
            return self._strike_workers(site, site.file)
        mine = self.take(site, one_or_all(site, self.running(site)))
        for server in mine:
            server.stop(hard=True)
        return {**names(mine), "bytes dropped": sum(server.disk.drop_unsynced() for server in mine if server.disk)}

    def _strike_workers(self, site: Site, disk: Disk) -> dict[str, Any]:
        """They are on the host that loses power, all of them."""
        if len(untouched(site, site.workers)) < len(site.workers):
            return {"at": None}  # another fault has one in its hands, who would outlive its host
        aimed(site, "holds", "gap", patience=AT_WORK_WITHIN * site.ttl)
        self._workers = self.take(site, site.workers)
        frozen(worker.pid for worker in self._workers)  # first: nobody sees another one die
        for worker in self._workers:
            worker.kill()
        dropped = disk.drop_unsynced()
        believe_in_boot(disk.power_losses)
        return {"at": ", ".join(worker.name for worker in self._workers), "bytes dropped": dropped}

    def put_right(self) -> None:
        """Start it."""
        if self._workers:
            for worker in self._workers:
                worker.restart()
        else:
            launch(self.servers())


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
        launch(self.servers())


def _pair(servers: list[Server]) -> list[RedisServer]:
    return [server for server in servers if isinstance(server, RedisServer) and server.front is not None]


class FullDisk(DiskFault):
    """Writes to files fail. Some engines refuse what they are asked for then, others end."""

    name: ClassVar[str] = "full-disk"
    summary: ClassVar[str] = (
        "a server, or all, can write nothing (ENOSPC), or nothing that lengthens a file; then it can"
    )
    lasts: ClassVar[float] = 1.0

    def __init__(self) -> None:
        """There is room yet."""
        super().__init__()
        self._full: list[tuple[Disk, Server | None]] = []

    def strike(self, site: Site) -> dict[str, Any]:
        """Fill it."""
        how: Fullness = site.chance.choice(get_args(Fullness))
        if site.file:
            self._full = [(disk, None) for disk in self.take(site, [site.file])]
            said: dict[str, Any] = {"at": "the file" if self._full else None}
        else:
            mine = self.take(site, one_or_all(site, self.running(site)))
            self._full = [(server.disk, server) for server in mine if server.disk]
            said = names(mine)
        for disk, _ in self._full:
            disk.fill(how)
        return {**said, "how": how}

    def put_right(self) -> None:
        """Make room, and start those that ended over it or do not find back."""
        for disk, _ in self._full:
            disk.fill(None)
        ended = [server for _, server in self._full if server and not server.answers()]
        for server in ended:
            server.stop(hard=True)
        launch(ended)


def launch(servers: Sequence[Server]) -> None:
    """Start those that do not run."""
    for server in servers:
        if not server.pids:
            server.launch()
