"""What SQLAlchemy's statements do to tables with a version column, read from the statements themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Delete, Insert, Table, TextClause, Update, event
from sqlalchemy.orm import Mapper, class_mapper, registry
from sqlalchemy.sql.visitors import iterate

ALLOWED = "leasehold_unversioned"
"""The execution option of a statement that may go without."""
_WRITES = re.compile(r"\s*(UPDATE|DELETE\s+FROM)\s+(?:ONLY\s+)?([\w.\"`\[\]]+)", re.IGNORECASE)


class Bypass(NamedTuple):
    """A statement that writes without regard to the version."""

    verb: str
    table: str
    column: str
    lacks: str


class Guarded(NamedTuple):
    """A table with a version column."""

    table: str
    column: str
    raised_by_server: bool
    """Whether the database raises the version, so that statements need not."""


def guarded_by(mapped: Sequence[Any]) -> dict[str, Guarded]:
    """The tables with a version among mapped classes, a declarative base, or a registry."""
    found = {}
    for mapper in _mappers(mapped):
        column = mapper.version_id_col
        if column is not None and isinstance(column.table, Table):
            by_server = mapper.version_id_generator is False
            found[column.table.fullname] = Guarded(column.table.fullname, column.name, by_server)
    return found


def _mappers(mapped: Sequence[Any]) -> Iterator[Mapper[Any]]:
    for one in mapped:
        if isinstance(one, registry):
            one.configure()
            yield from one.mappers
        elif isinstance(getattr(one, "registry", None), registry) and not hasattr(one, "__mapper__"):
            one.registry.configure()
            yield from one.registry.mappers
        else:
            yield class_mapper(one)


def watch(engine: Any, guarded: Mapping[str, Guarded], found: Any) -> None:
    """Call `found` with each bypass, before it is carried out, on an Engine or an AsyncEngine."""

    def before(_connection: Any, statement: Any, many: Any, one: Any, options: Mapping[str, Any]) -> None:
        if options.get(ALLOWED) is True or statement.get_execution_options().get(ALLOWED) is True:
            return
        bypass = bypass_in(statement, [*(many or ()), one or {}], guarded)
        if bypass is not None:
            found(bypass)

    event.listen(getattr(engine, "sync_engine", engine), "before_execute", before)


def bypass_in(statement: Any, values: Sequence[Mapping[str, Any]], guarded: Mapping[str, Guarded]) -> Bypass | None:
    """What is wrong with a statement; None when nothing is."""
    if isinstance(statement, TextClause):
        return _in_text(statement.text, guarded)
    one = guarded.get(getattr(getattr(statement, "table", None), "fullname", ""))
    if one is None:
        return None
    if isinstance(statement, Insert):
        return _in_upsert(statement, one)
    return _in_write(statement, values, one) if isinstance(statement, (Update, Delete)) else None


def _in_write(statement: Update | Delete, values: Sequence[Mapping[str, Any]], one: Guarded) -> Bypass | None:
    verb = "UPDATE" if isinstance(statement, Update) else "DELETE"
    if not _is_condition(statement, one):
        return Bypass(verb, one.table, one.column, "condition")
    if isinstance(statement, Update) and not one.raised_by_server and not _is_raised(statement, values, one):
        return Bypass(verb, one.table, one.column, "new value")
    return None


def _is_condition(statement: Update | Delete, one: Guarded) -> bool:
    where = statement.whereclause
    return where is not None and any(_is_version(part, one) for part in iterate(where))


def _is_version(part: Any, one: Guarded) -> bool:
    return (
        getattr(part, "name", None) == one.column and getattr(getattr(part, "table", None), "fullname", "") == one.table
    )


def _is_raised(statement: Update, values: Sequence[Mapping[str, Any]], one: Guarded) -> bool:
    ordered = getattr(statement, "_ordered_values", None) or ()  # of SQLAlchemy 2.0
    names = {getattr(key, "name", key) for key in (*(statement._values or {}), *(key for key, _ in ordered))}
    return one.column in names or any(one.column in each for each in values)


def _in_upsert(statement: Insert, one: Guarded) -> Bypass | None:
    """``INSERT … ON CONFLICT DO UPDATE`` and ``ON DUPLICATE KEY UPDATE`` write rows that are there."""
    clause = getattr(statement, "_post_values_clause", None)
    written = getattr(clause, "update_values_to_set", None) or getattr(clause, "update", None)
    if not written:
        return None
    names = {getattr(key, "name", key) for key in (written if isinstance(written, Mapping) else dict(written))}
    return None if one.column in names else Bypass("UPDATE", one.table, one.column, "new value")


def _in_text(text: str, guarded: Mapping[str, Guarded]) -> Bypass | None:
    written = _WRITES.match(text)
    if written is None:
        return None
    name = re.sub(r"[\"`\[\]]", "", written[2])
    one = guarded.get(name)
    if one is None or re.search(rf"\bWHERE\b.*\b{re.escape(one.column)}\b", text, re.IGNORECASE | re.DOTALL):
        return None
    return Bypass(written[1].split()[0].upper(), one.table, one.column, "condition")
