"""The check at the resource, one file a kind of resource. A fence knows tokens, not engines.

Importing this imports no client library: a fence uses the connection or client that it is given.
"""

from leasehold.errors import StaleToken, TokenJump, TokenUsed
from leasehold.fences.column import AsyncColumnFence, ColumnFence
from leasehold.fences.file import FileFence
from leasehold.fences.redis import AsyncRedisFence, RedisFence
from leasehold.fences.rule import HasToken
from leasehold.fences.signed import SignedToken, TokenSigner
from leasehold.fences.sql import AsyncSqlFence, SqlFence
from leasehold.fences.sqlite import SqliteFence
from leasehold.fences.trigger import AsyncTriggerFence, TriggerFence

__all__ = [
    "AsyncColumnFence",
    "AsyncRedisFence",
    "AsyncSqlFence",
    "AsyncTriggerFence",
    "ColumnFence",
    "FileFence",
    "HasToken",
    "RedisFence",
    "SignedToken",
    "SqlFence",
    "SqliteFence",
    "StaleToken",
    "TokenJump",
    "TokenSigner",
    "TokenUsed",
    "TriggerFence",
]
