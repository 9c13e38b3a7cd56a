"""The check at the resource, one file a kind of resource. A fence knows tokens, not engines.

Importing this imports no client library: a fence uses the connection or client that it is given.
"""

from leasehold.errors import StaleToken, TokenJump, TokenUsed
from leasehold.fences.column import AsyncColumnFence, ColumnFence
from leasehold.fences.dynamodb import AsyncDynamoDBFence, DynamoDBFence
from leasehold.fences.etcd import AsyncEtcdFence, EtcdFence
from leasehold.fences.file import AsyncFileFence, FileFence
from leasehold.fences.gcs import AsyncGcsFence, GcsFence
from leasehold.fences.redis import AsyncRedisFence, RedisFence
from leasehold.fences.rule import HasToken
from leasehold.fences.s3 import AsyncS3Fence, S3Fence
from leasehold.fences.signed import SignedToken, TokenSigner
from leasehold.fences.sql import AsyncSqlFence, SqlFence
from leasehold.fences.sqlite import SqliteFence
from leasehold.fences.trigger import AsyncTriggerFence, TriggerFence
from leasehold.fences.zookeeper import AsyncZooKeeperFence, ZooKeeperFence

__all__ = [
    "AsyncColumnFence",
    "AsyncDynamoDBFence",
    "AsyncEtcdFence",
    "AsyncFileFence",
    "AsyncGcsFence",
    "AsyncRedisFence",
    "AsyncS3Fence",
    "AsyncSqlFence",
    "AsyncTriggerFence",
    "AsyncZooKeeperFence",
    "ColumnFence",
    "DynamoDBFence",
    "EtcdFence",
    "FileFence",
    "GcsFence",
    "HasToken",
    "RedisFence",
    "S3Fence",
    "SignedToken",
    "SqlFence",
    "SqliteFence",
    "StaleToken",
    "TokenJump",
    "TokenSigner",
    "TokenUsed",
    "TriggerFence",
    "ZooKeeperFence",
]
