"""What the benchmark knows of PostgreSQL: its floor, a lock by hand to compare with, and how to clear up."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from leasehold.bench.places import Place
from leasehold.wires.postgres_target import target_from_url

HOLDER: Final = b"0123456789abcdef0123456789abcdef"
_TAKE: Final = """
INSERT INTO "{table}" VALUES ($1, $2, 1, 1700000000000000) ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, token = "{table}".token + 1, expires = excluded.expires RETURNING token
"""
# Nobody needs to wait for the disk when a name is given back.
_RELEASE: Final = """
UPDATE "{table}" SET holder = NULL FROM (SELECT set_config('synchronous_commit', 'off', true)) AS lazily WHERE name = $1
"""


def connected(place: Place) -> psycopg.Connection[Any]:
    """A connection of psycopg as it is by default, but in autocommit mode, to where Leasehold would connect."""
    target = target_from_url(place.on)
    [endpoint] = target.endpoints[:1]
    settings = {**target.parameters, "host": endpoint.path or endpoint.host, "port": str(endpoint.port)}
    return psycopg.connect(make_conninfo("", **settings), autocommit=True)


class RawPostgres:
    """Two prepared statements of one row each through bare libpq: what any lock in a table there must cost."""

    def __init__(self, place: Place, name: str) -> None:
        self._connection = connected(place)
        words = {"table": f"{place.namespace}-floor"}
        columns = "(name text PRIMARY KEY, holder text, token bigint, expires bigint) WITH (fillfactor = 50)"
        self._connection.execute(f'CREATE TABLE IF NOT EXISTS "{words["table"]}" {columns}'.encode())
        self._libpq, self._name = self._connection.pgconn, name.encode()
        for statement, text in ((b"take", _TAKE), (b"release", _RELEASE)):
            self._libpq.prepare(statement, text.format(**words).encode())

    def __enter__(self) -> None:
        if self._libpq.exec_prepared(b"take", [self._name, HOLDER]).status != pq.ExecStatus.TUPLES_OK:
            raise RuntimeError("the floor's own row could not be written")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._libpq.exec_prepared(b"release", [self._name])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class AdvisoryLock:
    """What people write by hand: no token, and the server waits and hands over."""

    def __init__(self, place: Place) -> None:
        self._connection = connected(place)
        self._key = int.from_bytes(place.namespace.encode()[-7:], "big")

    def __enter__(self) -> None:
        self._connection.execute("SELECT pg_advisory_lock(%s)", (self._key,), prepare=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s)", (self._key,), prepare=True)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def version(place: Place) -> str:
    """The server's own."""
    with contextlib.closing(connected(place)) as connection:
        number = connection.info.server_version
    return f"{number // 10000}.{number % 10000}"


def clear(place: Place) -> None:
    """Remove what the benchmark has written."""
    schema = target_from_url(place.on).schema
    with contextlib.closing(connected(place)) as connection:
        connection.execute(f'DROP TABLE IF EXISTS "{place.namespace}-floor"'.encode())
        for table in ("lease", "seat", "waiter"):
            statement = f'DELETE FROM "{schema}".leasehold_{table} WHERE namespace = %s'  # noqa: S608
            with contextlib.suppress(psycopg.errors.UndefinedTable):
                connection.execute(statement.encode(), (place.namespace,))
