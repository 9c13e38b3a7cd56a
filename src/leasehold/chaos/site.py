"""The place of a run: what there is to be broken."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from leasehold.testing.proxy import Proxy


class Server(Protocol):
    """A server of the engine that this run may stop and start: its own, on this host."""

    pids: list[int]
    """Its processes, the leader first where there is one."""

    def stop(self, *, hard: bool = False) -> None:
        """End it, by SIGTERM or by SIGKILL."""
        ...

    def start(self) -> None:
        """Start it on what it left, and wait until it answers."""
        ...


class Worker(Protocol):
    """A worker process of the run."""

    name: str
    pid: int

    def restart(self) -> None:
        """Start another one in its place, after it was killed."""
        ...


@dataclass
class Site:
    """What a fault may touch."""

    url: str
    """The engine, as the run itself reaches it: not through the proxies."""
    ttl: float
    workers: list[Worker]
    proxies: list[Proxy] = field(default_factory=list)
    """Between the workers and the engine, one for each worker; none for an embedded engine."""
    servers: list[Server] = field(default_factory=list)
    """The engine's own servers, if the run started them; a cluster has several."""
    chance: random.Random = field(default_factory=random.Random)


class Fault(Protocol):
    """One way in which things break."""

    name: ClassVar[str]
    summary: ClassVar[str]
    pauses_holders: ClassVar[bool]
    """Whether a holder may be stalled past its TTL by it, or be revoked, so that beliefs may overlap in spite of
    everything (and only a fence helps)."""

    def missing(self, site: Site) -> str | None:
        """What it needs and this site has not, in words for people; None when it can be done."""
        ...

    def strike(self, site: Site) -> dict[str, Any]:
        """Break it; what is said about it in the history."""
        ...

    def mend(self, site: Site) -> None:
        """Put it right again."""
        ...
