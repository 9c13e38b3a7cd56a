"""The command keeps the books of its jobs with the engine that it was given, over the engine's own wire."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

from leasehold import Leasehold, NotSupported
from leasehold.core.worlds import run_blocking
from leasehold.opening import open_family
from leasehold.patterns.jobs.shelves import Shelf, notes_with


@pytest.fixture(params=["sqlite", "redis", "postgresql", "postgresql+session", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        with Leasehold(tmp_path / "leases.db") as locks, locks.lock("make-the-file"):
            return f"sqlite:///{tmp_path}/leases.db"
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        return f"redis://127.0.0.1:{redis.port}/0"
    if request.param == "mysql":
        mariadb: MariadbServer = request.getfixturevalue("mariadb_server")
        return mariadb.url
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    return postgres.url.replace("postgresql:", f"{request.param}:")


def test_a_note_is_written_on_the_condition_that_nobody_else_has(url: str, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with contextlib.closing(_notes(url)) as one, contextlib.closing(_notes(url)) as other:
        assert run_blocking(one.note(name))[:2] == (0, "")
        assert run_blocking(one.set_note(name, 0, "höllo $1 {x} %s '\""))
        assert not run_blocking(other.set_note(name, 0, "late"))
        assert run_blocking(other.note(name))[:2] == (1, "höllo $1 {x} %s '\"")
        assert run_blocking(other.set_note(name, 1, "two"))
        assert not run_blocking(one.set_note(name, 1, "late"))
        version, text, now = run_blocking(one.note(name))
    assert (version, text) == (2, "two")
    assert now > 1_700_000_000


def _notes(url: str) -> Shelf:
    return notes_with(open_family(url, namespace="", label="test"), "test")


def test_a_file_is_as_open_to_others_as_the_lease_file(tmp_path: Path) -> None:
    with Leasehold(tmp_path / "leases.db") as locks, locks.lock("make-the-file"):
        notes = notes_with(locks._family, "test")
    assert not (tmp_path / "leases.db-jobs").exists()
    with contextlib.closing(notes):
        run_blocking(notes.set_note("a", 0, "b"))
    assert (tmp_path / "leases.db-jobs").stat().st_mode == (tmp_path / "leases.db").stat().st_mode


def test_other_engines_are_refused_with_the_names_of_those_that_can() -> None:
    with pytest.raises(NotSupported, match="PostgreSQL"):
        _notes("etcd://127.0.0.1:9")
