"""A connection to the database that fences protect, for the command: by URL, in blocking code."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from leasehold.errors import EngineError, InvalidURL
from leasehold.wires.sqlite_file import lease_file

FORMS = "postgresql://user@host/database or sqlite:////path/of/the.db"
_CONNECT_WITHIN = 10


def fenced_database(url: str) -> AbstractContextManager[Any]:
    """An open connection, in a transaction that is committed at the end of the block."""
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    if scheme == "sqlite":
        return _sqlite(url)
    raise InvalidURL(f"give the URL of the database that is protected, such as {FORMS}")


@contextlib.contextmanager
def _postgres(url: str) -> Iterator[Any]:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise EngineError("PostgreSQL needs psycopg: pip install 'leasehold[postgresql]'") from None
    from leasehold.wires.postgres_errors import unreachable, why_not_let_in

    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        raise InvalidURL(f"this is no URL that libpq understands; write {FORMS}") from None
    try:
        connection = psycopg.connect(url, connect_timeout=_CONNECT_WITHIN)
    except psycopg.OperationalError as error:
        password = parts.get("password")
        where = f"postgresql at {parts.get('host', 'the default socket')}"
        raise unreachable(where, why_not_let_in(str(error), str(password) if password else None)) from None
    try:
        with connection:
            yield connection
    except psycopg.Error as error:
        first, _, _ = str(error).partition("\n")
        raise EngineError(f"PostgreSQL refused: {first} (SQLSTATE {error.sqlstate})") from error


@contextlib.contextmanager
def _sqlite(url: str) -> Iterator[sqlite3.Connection]:
    path = lease_file(url).path
    if not path.is_file():
        raise InvalidURL(f"there is no file {path}")
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        yield connection
