"""Single writer: entities are spread over partitions, and each partition has one owner by a fenced lease.

What it does not promise: that an earlier owner has stopped. One that is frozen for longer than its lease goes on for a
moment when it thaws. Its writes carry an older token, so put a fence before what is written to.
"""

from leasehold.errors import Moved, QueueFull
from leasehold.patterns.partitions.blocking import Partitions
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import AsyncInbox, Inbox, InThreads, Message, Parked
from leasehold.patterns.partitions.inbox_redis import RedisInbox
from leasehold.patterns.partitions.inbox_sql import SqlInbox
from leasehold.patterns.partitions.owned import Writer
from leasehold.patterns.partitions.tasks import AsyncPartitions

__all__ = [
    "AsyncInbox",
    "AsyncPartitions",
    "Entities",
    "InThreads",
    "Inbox",
    "Message",
    "Moved",
    "Parked",
    "Partitions",
    "QueueFull",
    "RedisInbox",
    "SqlInbox",
    "Writer",
]
