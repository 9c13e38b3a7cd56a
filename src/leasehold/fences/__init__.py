"""The check at the resource, one file a kind of resource. A fence knows tokens, not engines.

Importing this imports no client library: a fence uses the connection or client that it is given.
"""

from leasehold.errors import StaleToken, TokenJump, TokenUsed
from leasehold.fences.file import FileFence
from leasehold.fences.redis import AsyncRedisFence, RedisFence
from leasehold.fences.rule import HasToken
from leasehold.fences.sql import AsyncSqlFence, SqlFence
from leasehold.fences.sqlite import SqliteFence
from leasehold.fences.trigger import AsyncTriggerFence, TriggerFence

__all__ = [
    "AsyncRedisFence",
    "AsyncSqlFence",
    "AsyncTriggerFence",
    "FileFence",
    "HasToken",
    "RedisFence",
    "SqlFence",
    "SqliteFence",
    "StaleToken",
    "TokenJump",
    "TokenUsed",
    "TriggerFence",
]
