# ruff: noqa: S608 - what is put into the statements is a name of a table that was checked, and our own words
"""Values with versions in one table, for code without an ORM: each is written at the version at which it was read."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from leasehold.errors import Misuse, VersionConflict, quoted
from leasehold.fences.sql_handles import async_handle
from leasehold.fences.sql_rule import Answer, Ask
from leasehold.names import check_name
from leasehold.patterns.databases import check_table, dialect_of, handle_of, perform, perform_async
from leasehold.patterns.dialects import INSERT, TEXT, UNLESS_THERE, NewRow

T = TypeVar("T")
Steps = Generator[Ask, Answer, T]


class Versioned(NamedTuple):
    """A value and its version; version 0 is that of a value that is not there."""

    value: Any
    version: int


class _Sql:
    """The statements, in the words of one kind of database."""

    def __init__(self, dialect: str, table: str) -> None:
        # Compared byte by byte: in MySQL, two names that differ only in case would else be one.
        name = "VARBINARY(255)" if dialect == "mysql" else "VARCHAR(255)"
        self.create = Ask(
            f"CREATE TABLE IF NOT EXISTS {table} "
            f"(name {name} PRIMARY KEY, version BIGINT NOT NULL, value {TEXT[dialect]} NOT NULL)",
            {},
        )
        self._select = f"SELECT value, version FROM {table} WHERE name = :name"
        self._insert = (
            f"{INSERT[dialect]} INTO {table} (name, version, value) VALUES (:name, 1, :value){UNLESS_THERE[dialect]}"
        )
        self._update = (
            f"UPDATE {table} SET value = :value, version = version + 1 WHERE name = :name AND version = :version"
        )

    def read(self, name: str) -> Steps[Versioned]:
        """The value of a name."""
        rows = (yield Ask(self._select, {"name": check_name(name)})).rows
        return Versioned(json.loads(rows[0][0]), rows[0][1]) if rows else Versioned(None, 0)

    def write_all(self, changes: Mapping[str, Versioned]) -> Steps[None]:
        """Write each, in an order that is the same for all, on the condition that its version is what it was."""
        rows = [(check_name(name), *_checked(change)) for name, change in sorted(changes.items())]
        for name, text, version in rows:
            values = {"name": name, "value": text, "version": version}
            if (yield Ask(self._update, values) if version else NewRow(self._insert, values)).touched != 1:
                raise VersionConflict(
                    f"{quoted(name)} is not at version {version} any more: somebody else wrote it since it was "
                    "read; read it again and decide anew"
                )


def _checked(change: Versioned) -> tuple[str, int]:
    value, version = change
    if type(version) is not int or version < 0:
        raise Misuse(f"a version is the int that was read with the value, not {quoted(version)}")
    try:
        # In ASCII: every table and connection can take it, whatever the character set of either is.
        return json.dumps(value, allow_nan=False), version
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(f"the value is not JSON: {quoted(str(error))}") from None


class Versions:
    """JSON values with versions in one table, for code without an ORM.

    Give it a connection of sqlite3, psycopg, psycopg2 or PyMySQL, or one of SQLAlchemy or Django. Several values are
    written together, in one transaction, on the condition that none of them has changed.
    """

    def __init__(self, connection: Any, *, table: str = "leasehold_version") -> None:
        self.connection = connection
        self._handle = handle_of(connection)
        self._sql = _Sql(dialect_of(self._handle), check_table(table))

    def create(self) -> None:
        """Make the table unless it is there; where you set up your own tables."""
        with self._handle.setting_up():
            self._handle.ask(self._sql.create)

    def read(self, name: str) -> Versioned:
        """The value of a name; None with version 0 when there is none."""
        with self._handle.transaction():
            return perform(self._sql.read(name), self._handle)

    def write(self, name: str, value: object, version: int) -> int:
        """Write a value that had this version when it was read; returns its new version."""
        self.write_all({name: Versioned(value, version)})
        return version + 1

    def write_all(self, changes: Mapping[str, Versioned]) -> None:
        """Write several values in one transaction, all or none; raises `VersionConflict` when one has changed."""
        with self._handle.transaction():
            perform(self._sql.write_all(changes), self._handle)


class AsyncVersions:
    """The same for async code: on an async connection of psycopg, asyncmy or SQLAlchemy."""

    def __init__(self, connection: Any, *, table: str = "leasehold_version") -> None:
        self.connection = connection
        self._handle = async_handle(connection)
        self._sql = _Sql(dialect_of(self._handle), check_table(table))

    async def create(self) -> None:
        """Make the table unless it is there; where you set up your own tables."""
        async with self._handle.setting_up():
            await self._handle.ask(self._sql.create)

    async def read(self, name: str) -> Versioned:
        """The value of a name; None with version 0 when there is none."""
        async with self._handle.transaction():
            return await perform_async(self._sql.read(name), self._handle)

    async def write(self, name: str, value: object, version: int) -> int:
        """Write a value that had this version when it was read; returns its new version."""
        await self.write_all({name: Versioned(value, version)})
        return version + 1

    async def write_all(self, changes: Mapping[str, Versioned]) -> None:
        """Write several values in one transaction, all or none; raises `VersionConflict` when one has changed."""
        async with self._handle.transaction():
            await perform_async(self._sql.write_all(changes), self._handle)
