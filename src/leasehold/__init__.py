"""Locks across processes and machines that stay correct when a holder stalls.

Every grant carries a fencing token that strictly increases; a fence at the resource refuses a lower one; and the
holder knows from its own clock when it may no longer believe.
"""

from leasehold.client import AsyncLeasehold, Leasehold
from leasehold.core.engine import Capability, Facts, Guarantee, HolderStatus, NameStatus, WaiterStatus
from leasehold.errors import (
    EngineError,
    EngineUnavailable,
    FailedBefore,
    GuaranteeTooWeak,
    GuaranteeWarning,
    InProgress,
    InvalidName,
    InvalidToken,
    InvalidTTL,
    InvalidURL,
    InvalidWait,
    KeyReused,
    LeaseholdError,
    LeaseLost,
    Misuse,
    Moved,
    NotAcquired,
    NotSupported,
    OutcomeUnknown,
    Quarantined,
    QueueFull,
    StaleToken,
    TokenJump,
    TokenUsed,
    TooManyConflicts,
    TooManyWaiters,
    VersionConflict,
)
from leasehold.lease import AsyncLease, Lease
from leasehold.lock import AsyncLock, AsyncSeveral, Lock, Several
from leasehold.several import AsyncLeases, Leases
from leasehold.watching import watch

__version__ = "0.1.0"

__all__ = [
    "AsyncLease",
    "AsyncLeasehold",
    "AsyncLeases",
    "AsyncLock",
    "AsyncSeveral",
    "Capability",
    "EngineError",
    "EngineUnavailable",
    "Facts",
    "FailedBefore",
    "Guarantee",
    "GuaranteeTooWeak",
    "GuaranteeWarning",
    "HolderStatus",
    "InProgress",
    "InvalidName",
    "InvalidTTL",
    "InvalidToken",
    "InvalidURL",
    "InvalidWait",
    "KeyReused",
    "Lease",
    "LeaseLost",
    "Leasehold",
    "LeaseholdError",
    "Leases",
    "Lock",
    "Misuse",
    "Moved",
    "NameStatus",
    "NotAcquired",
    "NotSupported",
    "OutcomeUnknown",
    "Quarantined",
    "QueueFull",
    "Several",
    "StaleToken",
    "TokenJump",
    "TokenUsed",
    "TooManyConflicts",
    "TooManyWaiters",
    "VersionConflict",
    "WaiterStatus",
    "watch",
]
