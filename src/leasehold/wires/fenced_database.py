"""A connection to the database that fences protect, and what they keep there, for the command: in blocking code."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, EngineUnavailable, InvalidURL, Misuse, NotSupported, quoted
from leasehold.fences.redis import FLOORS
from leasehold.fences.sql_handles import is_missing_table
from leasehold.fences.sql_rule import check_table
from leasehold.wires.sqlite_file import lease_file

FORMS = "postgresql://user@host/database or sqlite:////path/of/the.db"
FORMS_OF_FLOORS = f"{FORMS}, mysql://user@host/database, redis://host:6379"
_CONNECT_WITHIN = 10
_ANSWERS_WITHIN = 60.0
_SCANNED_AT_ONCE = 1000

Floor = tuple[str, int, int]
"""A resource, the highest token seen there, and the highest that has written; -1 stands for none."""


def floors_at(url: str, table: str, limit: int) -> list[Floor]:
    """The floors that fences keep there, in the order of their resources, up to one more than `limit`."""
    scheme = url.partition("://")[0]
    if scheme in ("mysql", "mariadb"):
        rows = _mysql_rows(url, _select(table, limit, "`"), table)
    elif scheme.startswith(("redis", "valkey")):
        return _redis_floors(url)[: limit + 1]
    elif scheme in ("postgresql", "postgres", "sqlite"):
        rows = _rows(url, _select(table, limit, '"'), table)
    else:
        raise InvalidURL(f"give the URL of what is protected, such as {FORMS_OF_FLOORS}")
    return [(_text(resource), int(token), int(written)) for resource, token, written in rows]


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _select(table: str, limit: int, mark: str) -> str:
    name = ".".join(f"{mark}{part}{mark}" for part in check_table(table))
    # The name is a checked identifier, and the limit an integer.
    return f"SELECT resource, token, written FROM {name} WHERE token >= 0 ORDER BY resource LIMIT {limit + 1}"  # noqa: S608


def _rows(url: str, sql: str, table: str) -> list[Any]:
    with fenced_database(url) as database:
        try:
            return list(database.execute(sql).fetchall())
        except Exception as error:
            if is_missing_table(error):
                raise _never_set_up(table) from None
            raise


def _never_set_up(table: str) -> Misuse:
    return Misuse(f"the database has no table {table}; fences of it were never set up")


def _mysql_rows(url: str, sql: str, table: str) -> list[Any]:
    from leasehold.wires.mysql_dial import Dialer
    from leasehold.wires.mysql_errors import NO_TABLE, error_from
    from leasehold.wires.mysql_packets import SqlError
    from leasehold.wires.mysql_target import target_from_url
    from leasehold.wires.sockets import BlockingSockets
    from leasehold.wires.sql_table import Request, Statement

    target, sockets = target_from_url(url), BlockingSockets()
    now = sockets.world.now()
    line = run_blocking(Dialer(target, sockets, "leasehold fence").dial(target.endpoints[0], now + _CONNECT_WITHIN))
    try:
        asking = line.ask_plainly([Request(Statement(sql, "floors"))], now + _ANSWERS_WITHIN, commits=False)
        return run_blocking(asking)[0]
    except SqlError as error:
        if error.code == NO_TABLE:
            raise _never_set_up(table) from None
        raise error_from(error, target.address, commits=False) from None
    finally:
        line.close()


def _redis_floors(url: str) -> list[Floor]:
    """Every floor of one server; it is looked through in steps, so that others are not held up."""
    from leasehold.wires.redis_blocking import BlockingWire
    from leasehold.wires.redis_replies import command
    from leasehold.wires.redis_target import target_from_url

    wire = BlockingWire(target_from_url(url), "leasehold fence")
    until = wire.world.now() + _ANSWERS_WITHIN
    found: dict[bytes, Floor] = {}
    cursor = b"0"
    try:
        while True:
            cursor, keys = wire.ask(command("SCAN", cursor, "MATCH", f"{FLOORS}*", "COUNT", _SCANNED_AT_ONCE), until)
            marks = [wire.ask(command("HMGET", key, "token", "written"), until) for key in keys]
            for key, (seen, written) in zip(keys, marks, strict=True):
                if seen is not None:
                    found[key] = (_resource_of(key), int(seen), -1 if written is None else int(written))
            if cursor == b"0":
                return sorted(found.values())
    finally:
        wire.close()


def _resource_of(key: bytes) -> str:
    """What a floor's key is for: behind its hash tag, or the tag itself."""
    tag, _, rest = _text(key).removeprefix(FLOORS).removeprefix("{").partition("}")
    return rest.removeprefix(":") or tag


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
        raise NotSupported("PostgreSQL needs the package psycopg: pip install 'leasehold[postgresql]'") from None
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
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise InvalidURL(
                f"{quoted(str(path))} is not a SQLite database; give the one that fences protect"
            ) from None
        raise EngineUnavailable(
            f"the database {quoted(str(path))} cannot be read: {error}; this user must be able to read it, and in its "
            "folder SQLite must be able to make the files that go with it"
        ) from error
