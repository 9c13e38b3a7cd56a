"""A guard for SQLAlchemy: statements that write to a versioned table past its version are refused.

SQLAlchemy looks after a version column where it writes the objects of a session. ``update(Account)``,
``session.query(Account).delete()`` and textual SQL go past it: they overwrite what somebody else has just written, and
leave the version as it was, so that not even the next writer notices. With the guard they are refused before they
reach the database.

What it does not see: other programs, other engines, statements in functions of the database, and ``exec_driver_sql``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.errors import Misuse, quoted
from leasehold.keeping import log

if TYPE_CHECKING:
    from leasehold.wires.sqlalchemy_versions import Bypass


def guard_versions(engine: Any, *mapped: Any, only_warn: bool = False) -> None:
    """Refuse what writes past the version columns of these mapped classes, of a declarative base or of a registry.

    `engine` is an Engine or an AsyncEngine of SQLAlchemy. With `only_warn` a bypass is logged and carried out: to find
    out what there is before it is forbidden. A statement that knows what it does says so:
    ``.execution_options(leasehold_unversioned=True)``.
    """
    from leasehold.wires.sqlalchemy_versions import guarded_by, watch

    guarded = guarded_by(mapped)
    if not guarded:
        raise Misuse("none of these classes has a version_id_col in its __mapper_args__, so there is nothing to guard")
    watch(engine, guarded, _warn if only_warn else _refuse)


def _refuse(bypass: Bypass) -> None:
    raise Misuse(_told(bypass))


def _warn(bypass: Bypass) -> None:
    log().warning("%s", _told(bypass))


def _told(bypass: Bypass) -> str:
    verb, table, column, lacks = bypass
    missing = "does not look at" if lacks == "condition" else "does not raise"
    return (
        f"{verb} of {quoted(table)} {missing} its version column {quoted(column)}, so it would overwrite what somebody "
        "else has written, unnoticed; change the objects in a session, or put the version into WHERE and SET, or allow "
        "this statement with execution_options(leasehold_unversioned=True)"
    )
