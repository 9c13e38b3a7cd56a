"""After a restore from a backup, floors are those of its time: stale holders pass, until the floors are raised."""

from __future__ import annotations

import base64
import json
import sqlite3
import urllib.request
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis
from tests.fences.file_guard import FileGuard
from tests.fences.guards import AsyncRedisGuard, Guard, RedisGuard, SqliteGuard
from tests.fences.http_guard import HttpGuard
from tests.fences.registry import FENCES, every_kind
from tests.fences.sql_guards import AsyncSqlGuard, SqlGuard
from tests.fences.store_guards import BUCKET, TABLE, DynamoDBGuard, EtcdGuard, GcsGuard, S3Guard, ZooKeeperGuard

from leasehold.errors import StaleToken
from leasehold.fences.etcd import floor_keys
from leasehold.fences.redis import floor_key
from leasehold.wires import zookeeper_messages as messages

Restore = Callable[[], object]


def _of_sqlite(database: sqlite3.Connection) -> Restore:
    kept = sqlite3.connect(":memory:")
    database.backup(kept)

    def restore() -> None:
        kept.backup(database)

    return restore


def _of_file(guard: FileGuard) -> Restore:
    """The whole of it, its floor included."""
    names = [path.name for path in guard.folder.iterdir() if guard.resource in path.name]
    kept = {name: (guard.folder / name).read_bytes() for name in names}
    assert guard.resource in kept
    assert len(kept) == 3, "the file, its floor and its lock"

    def restore() -> None:
        for name, content in kept.items():
            (guard.folder / name).unlink()
            (guard.folder / name).write_bytes(content)

    return restore


def _of_redis(guard: RedisGuard | AsyncRedisGuard) -> Restore:
    keys = (guard.resource, floor_key(guard.resource))
    with redis.Redis.from_url(guard.url) as client:
        dumps: list[Any] = [client.dump(key) for key in keys]

    def restore() -> None:
        with redis.Redis.from_url(guard.url) as client:
            for key, dump in zip(keys, dumps, strict=True):
                client.restore(key, 0, dump, replace=True)

    return restore


def _of_sql(guard: SqlGuard | AsyncSqlGuard) -> Restore:
    """Its rows, as a dump has them; PostgreSQL's own restore, too, may be told to leave the triggers out."""
    url = guard.address.partition(" ")[2]
    key = getattr(guard, "key", guard.resource)
    is_postgres = url.startswith("postgresql")
    places = {"thing": ("resource", guard.resource), "leasehold_fence": ("resource", guard.resource)}
    places["row_thing"] = ("id", key)
    if is_postgres:
        places["held_thing"] = ("id", key)
    with closing(SqlGuard(f"core {url}", "none")) as admin:
        kept = {
            table: admin.ask(f"SELECT * FROM {table} WHERE {column} = :name", name=_bytes_in_mysql(name, table, url))
            for table, (column, name) in places.items()
        }
        admin.end()

    def restore() -> None:
        with closing(SqlGuard(f"core {url}", "none", patience=30)) as admin:
            if is_postgres:
                admin.ask("ALTER TABLE held_thing DISABLE TRIGGER USER")
            for table, (column, name) in places.items():
                admin.ask(f"DELETE FROM {table} WHERE {column} = :name", name=_bytes_in_mysql(name, table, url))
                for row in kept[table]:
                    values = {f"v{number}": value for number, value in enumerate(row)}
                    admin.ask(f"INSERT INTO {table} VALUES ({', '.join(f':{name}' for name in values)})", **values)
            if is_postgres:
                admin.ask("ALTER TABLE held_thing ENABLE TRIGGER USER")
            admin.end()

    return restore


def _bytes_in_mysql(name: str, table: str, url: str) -> str | bytes:
    return name.encode() if table == "leasehold_fence" and url.startswith("mysql") else name


def _of_etcd(guard: EtcdGuard) -> Restore:
    kept = {key: guard._found(key)[0] for key in (guard.resource, *floor_keys(guard.resource))}

    def restore() -> None:
        for key, value in kept.items():
            body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value).decode()}
            url = guard.address.replace("etcd:", "http:") + "/v3/kv/put"
            urllib.request.urlopen(url, data=json.dumps(body).encode(), timeout=10.0).close()

    return restore


def _of_zookeeper(guard: ZooKeeperGuard) -> Restore:
    paths = (guard.resource, guard.fence.floor_path(guard.resource))
    kept = [messages.data_in(reply.body)[0] for reply in guard.past.ask([messages.get_data(path) for path in paths])]
    return lambda: guard.past.ask([messages.set_data(path, data) for path, data in zip(paths, kept, strict=True)])


def _of_s3(guard: S3Guard) -> Restore:
    body = guard.past.get_object(Bucket=BUCKET, Key=guard.resource)["Body"].read()
    return lambda: guard.past.put_object(Bucket=BUCKET, Key=guard.resource, Body=body)


def _of_gcs(guard: GcsGuard) -> Restore:
    metadata, value = guard._fields()["metadata"], guard.peek() or ""

    def restore() -> None:
        url = f"{guard.address}/upload/storage/v1/b/{BUCKET}/o"
        query = {"uploadType": "media", "name": guard.resource}
        guard.past.post(url, params=query, content=value.encode()).raise_for_status()
        guard.past.patch(guard.url, json={"metadata": metadata}).raise_for_status()

    return restore


def _of_dynamodb(guard: DynamoDBGuard) -> Restore:
    keys = {TABLE: guard._key, "leasehold_fence": {"resource": {"S": guard.resource}}}
    items = {table: guard.past.get_item(TableName=table, Key=key)["Item"] for table, key in keys.items()}
    return lambda: [guard.past.put_item(TableName=table, Item=item) for table, item in items.items()]


def backed_up(guard: Any) -> Restore:
    """Keep what is there now, past the fence; returns what puts it back."""
    match guard:
        case SqliteGuard():
            return _of_sqlite(guard.database)
        case HttpGuard():
            return _of_sqlite(guard.things.database)
        case FileGuard():
            return _of_file(guard)
        case RedisGuard() | AsyncRedisGuard():
            return _of_redis(guard)
        case SqlGuard() | AsyncSqlGuard():
            return _of_sql(guard)
        case EtcdGuard():
            return _of_etcd(guard)
        case ZooKeeperGuard():
            return _of_zookeeper(guard)
        case S3Guard():
            return _of_s3(guard)
        case GcsGuard():
            return _of_gcs(guard)
        case DynamoDBGuard():
            return _of_dynamodb(guard)
        case _:
            raise TypeError(guard)


@pytest.mark.parametrize("kind", every_kind(FENCES))
def test_floors_are_raised_after_a_restore(kind: str, fresh_of: Callable[..., Callable[[], Guard]]) -> None:
    with closing(fresh_of(kind, patience=30)()) as guard:
        guard.write(5, "at the time of the backup")
        restore = backed_up(guard)
        guard.write(7, "later")
        restore()
        assert (guard.peek(), guard.floor()) == ("at the time of the backup", 5)
        guard.write(6, "by a holder that was stale before")  # the danger: nothing remembers token 7
        restore()
        guard.raise_floor(8)
        with pytest.raises(StaleToken) as refused:
            guard.write(7, "by a holder from before the restore")
        assert refused.value.seen == 8
        assert guard.peek() == "at the time of the backup"
        guard.write(8, "by a new one")
        assert (guard.peek(), guard.floor()) == ("by a new one", 8)
