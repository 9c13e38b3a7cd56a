"""What the patterns have to say differently to SQLite, PostgreSQL and MySQL/MariaDB."""

from __future__ import annotations

from typing import Final

from leasehold.fences.sql_rule import Ask

INSERT: Final = {"sqlite": "INSERT OR IGNORE", "postgresql": "INSERT", "mysql": "INSERT"}
"""How an insert begins that leaves a row alone that is there already; `UNLESS_THERE` is how it ends.

In MySQL it is plain, and fails when the row is there. To IGNORE would be to ignore all that is wrong: what does not fit
is cut, and what its character set lacks becomes a question mark. And whether ON DUPLICATE KEY has found a row does not
show where the client has rows counted that were found, as those of SQLAlchemy and Django do.
"""
UNLESS_THERE: Final = {"sqlite": "", "postgresql": " ON CONFLICT DO NOTHING", "mysql": ""}
TEXT: Final = {"sqlite": "TEXT", "postgresql": "TEXT", "mysql": "MEDIUMTEXT CHARACTER SET utf8mb4"}
"""A column for text of any length."""
LOCKING: Final = {"sqlite": "", "postgresql": " FOR UPDATE", "mysql": " FOR UPDATE"}
"""How a SELECT ends that sees the latest state, and lets nobody change it before the transaction ends."""
_CLOCKS: Final = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400{zeros} AS INTEGER)",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1{zeros} AS bigint)",
    "mysql": "CAST(unix_timestamp(sysdate({digits})) * 1{zeros} AS SIGNED)",
}


class NewRow(Ask):
    """An insert that leaves a row alone that is there already: it has touched none then."""

    __slots__ = ()


def clock(dialect: str, digits: int) -> str:
    """An expression: the database's own time since 1970, in seconds with so many digits, as a whole number.

    >>> clock("mysql", 3)
    'CAST(unix_timestamp(sysdate(3)) * 1000 AS SIGNED)'
    """
    return _CLOCKS[dialect].format(zeros="0" * digits, digits=digits)
