"""The floor of each engine: what it costs with nothing between Python and it. No lock there can cost less."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from leasehold.bench.contestant import TTL, Contestant, Opened
from leasehold.bench.places import Place
from leasehold.bench.resp import BareSocket, packed


class RawRedis:
    """Two commands on a bare socket, with nothing between Python and the server: what any lock must cost."""

    def __init__(self, place: Place, name: str, ttl: int) -> None:
        self._bare = BareSocket(place.on)
        key = f"{place.namespace}:{name}:floor"
        self._take = packed("SET", key, "0123456789abcdef0123456789abcdef", "NX", "PX", ttl * 1000)
        self._release = packed("DEL", key)
        self._socket = self._bare.socket
        self._socket.settimeout(None)  # or each answer would take one more system call, to wait for it

    def send_take(self) -> None:
        """Ask for the key, and do not wait."""
        self._socket.sendall(self._take)

    def send_release(self) -> None:
        """Give the key back, and do not wait."""
        self._socket.sendall(self._release)

    def answer(self) -> bytes:
        """Wait for an answer: one of five bytes to the first, one of four to the second."""
        return self._socket.recv(64)

    def __enter__(self) -> None:
        self._socket.sendall(self._take)
        if self._socket.recv(64) != b"+OK\r\n":
            raise RuntimeError("the floor's own key was taken")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendall(self._release)
        self._socket.recv(64)

    def close(self) -> None:
        """Close the connection."""
        self._bare.close()


class RawRedlock:
    """The same two commands, scattered to every server at once, and all answers gathered.

    To go on when a majority has answered would be slower here, where all are alike: the others are late for the next.
    """

    def __init__(self, place: Place, name: str, ttl: int) -> None:
        hosts = place.on.removeprefix("redlock://").split(",")
        self._members = [
            RawRedis(dataclasses.replace(place, on=f"redis://{host}"), f"{name}:{host}", ttl) for host in hosts
        ]

    def _ask(self, send: Callable[[RawRedis], object]) -> None:
        for member in self._members:
            send(member)
        for member in self._members:
            member.answer()

    def __enter__(self) -> None:
        self._ask(RawRedis.send_take)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask(RawRedis.send_release)

    def close(self) -> None:
        """Close the connections."""
        for member in self._members:
            member.close()


class RawSQLite:
    """Two transactions of one row each, prepared: what any lock in such a file must cost."""

    def __init__(self, place: Place, name: str) -> None:
        self._name = name
        self._connection = sqlite3.connect(place.folder / "floor.db", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = NORMAL",
            "CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, holder TEXT, token INTEGER, expires INTEGER)",
        ):
            self._connection.execute(statement).fetchall()
        self._execute = self._connection.execute

    def __enter__(self) -> None:
        self._execute(
            "INSERT INTO lease VALUES (?, ?, 1, ?) ON CONFLICT (name) DO UPDATE"
            " SET holder = excluded.holder, token = token + 1, expires = excluded.expires RETURNING token",
            (self._name, "0123456789abcdef0123456789abcdef", 1_700_000_000_000_000),
        ).fetchall()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._execute("UPDATE lease SET holder = NULL WHERE name = ? AND holder IS NOT NULL", (self._name,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class Raw(AbstractContextManager[None], Protocol):
    """A floor that is connected; it is its own lock object."""

    def close(self) -> object:
        """Disconnect."""
        ...


def _opened(raw: Raw) -> Opened:
    return Opened(lambda: raw, lambda: raw, raw.close)


def _raw_redis(place: Place, name: str, ttl: int = TTL) -> Opened:
    return _opened(RawRedis(place, name, ttl))


def _raw_redlock(place: Place, name: str, ttl: int = TTL) -> Opened:
    return _opened(RawRedlock(place, name, ttl))


def _raw_sqlite(place: Place, name: str, _ttl: int = TTL) -> Opened:
    return _opened(RawSQLite(place, name))


def _raw_postgres(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.postgres import RawPostgres

    return _opened(RawPostgres(place, name))


def _raw_etcd(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.etcd import RawEtcd

    return _opened(RawEtcd(place, name))


def _raw_zookeeper(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.zookeeper import RawZooKeeper

    return _opened(RawZooKeeper(place, name))


def _raw_mysql(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.mysql import RawMysql

    return _opened(RawMysql(place, name))


def _raw_consul(place: Place, name: str, _ttl: int = TTL) -> Opened:
    from leasehold.bench.consul import RawConsul

    return _opened(RawConsul(place, name))


FLOORS = {
    floor.engine: floor
    for floor in (
        Contestant("floor", "floor: two commands on a bare socket", "redis", None, _raw_redis),
        Contestant("floor", "floor: two commands to all, on bare sockets", "redlock", None, _raw_redlock),
        Contestant("floor", "floor: two one-row transactions", "sqlite", None, _raw_sqlite),
        Contestant("floor", "floor: two one-row statements by libpq", "postgresql", "psycopg", _raw_postgres),
        Contestant("floor", "floor: two one-row statements on a bare socket", "mysql", None, _raw_mysql),
        Contestant("floor", "floor: two requests on a bare gRPC channel", "etcd", "grpc", _raw_etcd),
        Contestant("floor", "floor: two requests on a bare socket", "zookeeper", None, _raw_zookeeper),
        Contestant("floor", "floor: two transactions on a bare socket", "consul", None, _raw_consul),
    )
}


def floor_of(place: Place) -> Contestant | None:
    """The floor that ratios at a place are to; None where the benchmark knows none."""
    floor = FLOORS.get(place.kind)
    return floor if floor is not None and floor.runs_on(place) else None
