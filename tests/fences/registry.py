"""Every kind of fence, registered once: where its resource comes from, and how a client of it is made.

What is registered here runs all scenarios (`test_scenarios.py`), races in threads and as processes, is stopped and
killed (`test_processes.py`), and is asked very often (`test_many_asks.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from tests.fences.guards import Guard


class Kind(NamedTuple):
    """A kind of fence."""

    place: str
    """What is started for it: `address_of` in `conftest.py` knows how."""
    guard: str
    """The class of its guards, in a module of this folder. Named only: a holder's process imports no other kind."""
    steps: bool
    """Whether there is something between its check and its write where one can be overtaken, or die."""
    client: str = ""
    """The client library, where there are several; it stands before the address."""
    settings: Mapping[str, Any] = {}


def _sql(way: str, guard: str) -> Kind:
    client, engine = way.split()
    return Kind(engine, guard, steps=True, client=client)


def _either(name: str, place: str, guard: str, *, steps: bool = False) -> dict[str, Kind]:
    """Of one class for both worlds."""
    kind = Kind(place, guard, steps)
    return {name: kind, f"{name} asyncio": kind._replace(settings={"in_asyncio": True})}


SQL_WAYS = [
    "psycopg postgresql",
    "psycopg2 postgresql",
    "core postgresql",
    "orm postgresql",
    "django postgresql",
    "core sqlite",
    "orm sqlite",
    "django sqlite",
    "pymysql mysql",
    "core mysql",
    "orm mysql",
    "django mysql",
]
ASYNC_SQL_WAYS = [
    "psycopg postgresql",
    "core postgresql",
    "orm postgresql",
    "core sqlite",
    "orm sqlite",
    "asyncmy mysql",
    "core mysql",
    "orm mysql",
]
COLUMN_WAYS = ["psycopg postgresql", "orm postgresql", "core sqlite", "django sqlite", "pymysql mysql"]
ASYNC_COLUMN_WAYS = ["psycopg postgresql", "orm postgresql", "core sqlite", "asyncmy mysql"]

KINDS: dict[str, Kind] = {
    "sqlite": Kind("folder", "guards:SqliteGuard", steps=True),
    **_either("file", "folder", "file_guard:FileGuard"),
    **{engine: Kind(engine, "guards:RedisGuard", steps=False) for engine in ("redis", "valkey")},
    **{f"{engine} asyncio": Kind(engine, "guards:AsyncRedisGuard", steps=False) for engine in ("redis", "valkey")},
    **{way: _sql(way, "sql_guards:SqlGuard") for way in SQL_WAYS},
    **{f"{way} asyncio": _sql(way, "sql_guards:AsyncSqlGuard") for way in ASYNC_SQL_WAYS},
    **{f"column {way}": _sql(way, "table_guards:ColumnGuard") for way in COLUMN_WAYS},
    **{f"column {way} asyncio": _sql(way, "table_guards:AsyncColumnGuard") for way in ASYNC_COLUMN_WAYS},
    "trigger": _sql("psycopg postgresql", "table_guards:TriggerGuard"),
    "trigger asyncio": _sql("psycopg postgresql", "table_guards:AsyncTriggerGuard"),
    **_either("http", "http", "http_guard:HttpGuard"),
    **_either("etcd", "etcd", "store_guards:EtcdGuard"),
    **_either("zookeeper", "zookeeper", "store_guards:ZooKeeperGuard", steps=True),
    **_either("s3", "aws", "store_guards:S3Guard", steps=True),
    **_either("gcs", "gcs", "store_guards:GcsGuard", steps=True),
    **_either("dynamodb", "aws", "store_guards:DynamoDBGuard"),
}

FENCES = [
    "sqlite",
    "file",
    "redis",
    "psycopg postgresql",
    "pymysql mysql",
    "column psycopg postgresql",
    "trigger",
    "http",
    "etcd",
    "zookeeper",
    "s3",
    "gcs",
    "dynamodb",
]
"""Each fence by one way in, for what takes longest."""
ADAPTERS = [*FENCES, "valkey", "orm postgresql", "django sqlite", "column pymysql mysql"]
"""Each fence by one or two ways in, for what takes longer."""
ASYNC_ADAPTERS = [
    "file asyncio",
    "redis asyncio",
    "psycopg postgresql asyncio",
    "asyncmy mysql asyncio",
    "column psycopg postgresql asyncio",
    "trigger asyncio",
    "http asyncio",
    "etcd asyncio",
    "zookeeper asyncio",
    "s3 asyncio",
    "gcs asyncio",
    "dynamodb asyncio",
]
"""Each async fence by one way in."""


def every_kind(most_important: Sequence[str] = (*ADAPTERS, *ASYNC_ADAPTERS), *, steps: bool = False) -> list[Any]:
    """All kinds, as parameters of a test that takes long: those that are not the most important ones at night only."""
    return [
        pytest.param(name, marks=() if name in most_important else pytest.mark.nightly)
        for name, kind in KINDS.items()
        if kind.steps or not steps
    ]


def opened(kind: str, address: str, resource: str, *, patience: float = 0.2) -> Guard:
    """A client of the resource, which waits so many seconds for others where it must wait."""
    one = KINDS[kind]
    module, _, name = one.guard.partition(":")
    guard: Guard = getattr(importlib.import_module(f"tests.fences.{module}"), name)(
        f"{one.client} {address}".strip(), resource, patience=patience, **one.settings
    )
    return guard
