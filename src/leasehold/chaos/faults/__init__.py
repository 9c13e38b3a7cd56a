"""The faults that a run can make, by name. Each says what it needs where that is missing."""

from __future__ import annotations

from typing import Final

from leasehold.chaos.faults.base import BaseFault
from leasehold.chaos.faults.clocks import ClientClockJump, ClientClockStrobe, EngineClockJump, EngineClockStrobe
from leasehold.chaos.faults.engine import EnginePause, EngineRestart, FailOver, FullDisk, LeaderKill, PowerLoss
from leasehold.chaos.faults.network import LateGrant, Latency, LateReplies, LostReplies, LostRequests, Partition, Resets
from leasehold.chaos.faults.revocation import Revocation
from leasehold.chaos.faults.workers import HostDeath, Kill, Pause, PauseInGap

__all__ = ["FAULTS"]

FAULTS: Final[dict[str, type[BaseFault]]] = {
    kind.name: kind
    for kind in (
        Pause,
        PauseInGap,
        Kill,
        HostDeath,
        EngineRestart,
        EnginePause,
        PowerLoss,
        LeaderKill,
        FailOver,
        FullDisk,
        Partition,
        LostRequests,
        LostReplies,
        Latency,
        LateReplies,
        LateGrant,
        Resets,
        EngineClockJump,
        EngineClockStrobe,
        ClientClockJump,
        ClientClockStrobe,
        Revocation,
    )
}
