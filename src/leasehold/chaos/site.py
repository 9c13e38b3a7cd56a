"""The place of a run: what there is to be broken."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from leasehold.testing.proxy import Proxy

Doing = Literal["idle", "waits", "holds", "gap", "clings"]
"""What a worker is at: "gap" is the moment between its last look at the lease and its write; who "clings" was told to
go on holding, and has read and not written."""


class Clock(Protocol):
    """The wall clock of some processes, which can be moved without touching that of the machine."""

    environment: Mapping[str, str]
    """What those processes have to be started with, on top of the usual."""

    def move(self, seconds: float) -> None:
        """Let it show the time of the machine plus so many seconds, from now on."""
        ...


Fullness = Literal["no-growth", "no-write"]
"""How a disk is full: where a file system overwrites in place, files cannot grow; where it never does, nothing can be
written at all."""


class Disk(Protocol):
    """The disk of a server, as that server sees it."""

    def fill(self, how: Fullness | None) -> None:
        """Let writes to files fail for want of room, or (None) no longer, from now on."""
        ...

    power_losses: int
    """How often what was not synced was dropped."""

    def drop_unsynced(self) -> int:
        """Undo what was written to each file since it was synced, while nobody writes; how many bytes."""
        ...


class Server(Protocol):
    """A server of the engine that this run may stop and start: its own, on this host."""

    engine: str
    name: str
    clock: Clock | None
    """Its wall clock, where it can be moved."""
    disk: Disk | None
    """Its disk, where what it writes is seen."""
    unseen: str
    """Why it is not seen."""

    @property
    def pids(self) -> list[int]:
        """Its processes, the main one first; none while it is stopped."""
        ...

    def answers(self) -> bool:
        """Whether it serves requests."""
        ...

    def leads(self) -> bool:
        """Whether it is the leader of its cluster; false where there is no such thing."""
        ...

    def robberies(self) -> list[tuple[float, float]]:
        """From when until when it may have ended leases that were still held, by its own word; on `time.time()`."""
        ...

    def stop(self, *, hard: bool = False) -> None:
        """End it, in good order or by SIGKILL."""
        ...

    def launch(self) -> None:
        """Start it on what it left, and do not wait."""
        ...

    def wait(self) -> None:
        """Wait until it answers."""
        ...

    def start(self) -> None:
        """Start it on what it left, and wait until it answers."""
        ...


class Worker(Protocol):
    """A worker process of the run."""

    name: str
    pid: int

    def doing(self) -> Doing:
        """What it is at right now, as far as it has said."""
        ...

    def restart(self) -> None:
        """Start another one in its place, after it was killed."""
        ...

    def kill(self) -> None:
        """End it now (SIGKILL), and wait until it is gone."""
        ...

    def hold_on(self, on: bool) -> None:
        """Tell it to go on holding what it is granted, from its next work on; or no longer."""
        ...


@dataclass
class Site:
    """What a fault may touch."""

    url: str
    """The engine, as the run itself reaches it: not through the proxies."""
    ttl: float
    workers: list[Worker]
    proxies: list[Proxy] = field(default_factory=list)
    """Between the workers and the engine, the same number for each worker, in the order of the workers (a cluster has
    one for each server); none for an embedded engine."""
    servers: list[Server] = field(default_factory=list)
    """The engine's own servers, if the run started them; a cluster has several."""
    chance: random.Random = field(default_factory=random.Random)
    namespace: str = ""
    """In which the workers' locks are."""
    subject: str = "leasehold"
    """The library that the workers use."""
    worker_clock: Clock | None = None
    """The wall clock of the workers, where it can be moved."""
    file: Disk | None = None
    """What is seen of the engine's file, where it is one of the run's own, which the workers themselves write."""
    struck: list[object] = field(default_factory=list)
    """Workers, proxies and servers that a fault has in its hands: other faults leave them alone until it is mended."""

    def proxies_of(self, worker: Worker) -> list[Proxy]:
        """Those between one worker and the engine."""
        each = len(self.proxies) // len(self.workers)
        first = self.workers.index(worker) * each
        return self.proxies[first : first + each]


class Fault(Protocol):
    """One way in which things break."""

    name: ClassVar[str]
    summary: ClassVar[str]
    lasts: ClassVar[float]
    """How long it is left as it is before it is mended, in TTLs."""
    pauses_holders: ClassVar[bool]
    """Whether a holder may be stalled past its TTL by it, or be revoked, so that beliefs may overlap in spite of
    everything (and only a fence helps)."""

    ends_connections: ClassVar[bool]
    """Whether connections end, at both sides. A lease that lives in one is then as good as revoked."""

    loses_answers: ClassVar[bool]
    """Whether a request may be carried out and its answer be lost, so that whoever asks again cannot know which of the
    two was the one."""

    def missing(self, site: Site) -> str | None:
        """What it needs and this site has not, in words for people; None when it can be done."""
        ...

    def strike(self, site: Site) -> dict[str, Any]:
        """Break it; what is said about it in the history."""
        ...

    def mend(self, site: Site) -> None:
        """Put it right again."""
        ...
