"""``leasehold fence status`` shows what each kind of database, and Redis, keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.tool import Result, call_in_process
from tests.fences.guards import Guard, SqliteGuard

from leasehold.fences import RedisFence


def status(*arguments: str, folder: Path) -> Result:
    return call_in_process(["fence", "status", *arguments], {"HOME": str(folder), "PATH": "/usr/bin"})


def url_for(kind: str, guard: Guard, address: str) -> str:
    return f"sqlite:///{guard.folder}/thing.db" if isinstance(guard, SqliteGuard) else address


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("sqlite", "folder"),
        ("psycopg postgresql", "postgresql"),
        ("pymysql mysql", "mysql"),
        ("redis", "redis"),
        ("valkey", "valkey"),
    ],
)
def test_floors_are_shown(
    kind: str,
    place: str,
    fresh_of: Callable[[str], Callable[[], Guard]],
    address_of: Callable[[str], str],
    tmp_path: Path,
) -> None:
    wrote, announced = fresh_of(kind)(), fresh_of(kind)()
    wrote.write(34, "x")
    announced.announce(2**63 - 1)
    url = url_for(kind, wrote, address_of(place))
    shown = status("--on", url, "--json", "--limit", "100000", folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    floors = {one["resource"]: one for one in json.loads(shown.stdout)["floors"]}
    assert floors[wrote.resource] == {"resource": wrote.resource, "token": "34", "written": "34"}
    assert floors[announced.resource] == {"resource": announced.resource, "token": str(2**63 - 1), "written": None}
    few = status("--on", url, "--limit", "1", folder=tmp_path)
    assert "there are more than 1 resources" in few.stderr
    wrote.close()
    announced.close()


def test_keys_with_a_hash_tag_are_shown_as_they_are_called(redis_url: str, tmp_path: Path) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        RedisFence(client).set("{account:42}:savings", 34, "x")
    shown = status("--on", redis_url, "--json", "--limit", "100000", folder=tmp_path)
    assert "{account:42}:savings" in [one["resource"] for one in json.loads(shown.stdout)["floors"]]


def test_a_database_without_floors_says_so(address_of: Callable[[str], str], tmp_path: Path) -> None:
    for place in ("mysql", "postgresql"):
        told = status("--on", address_of(place), "--table", "no_such_floors", folder=tmp_path)
        assert told.returncode == 64
        assert "no table no_such_floors" in told.stderr
