"""What a run was: everything that judges and readers of its history have to know, and nothing that is a secret."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold import Guarantee


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of the chaos tester."""

    engine: str
    """The kind of engine, as its facts name it: ``redis``, ``sqlite``, …"""
    address: str
    """Where it is, with no password in it."""
    subject: str
    """The library that was asked for the lock: ``leasehold``, or a peer."""
    workload: str
    faults: tuple[str, ...]
    """The faults that this run draws from."""
    seed: int
    seconds: float
    """How long faults were made; the time to settle comes after it."""
    ttl: float
    workers: int
    command: str
    """Repeats the run, in a shell."""
    wait: float = 0.0
    """How long a worker waits for the lock before it takes "busy" for an answer."""
    permits: int = 1
    """How many may hold at once."""
    pauses_holders: bool = False
    """Whether a fault of this run may stall or revoke a holder, so that beliefs may overlap in spite of everything."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Faults that were asked for and could not be done here, each with the reason."""
    guarantee: Guarantee | None = None
    """What the engine promises; None for a peer, which promises in words of its own."""
