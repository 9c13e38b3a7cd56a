"""What a lease file needs besides leases: tokens that survive a power cut, a new boot, and names nobody uses any more.

Commits are not synced to the disk one by one, since that would cost hundreds of times as much; a power cut may undo the
latest of them. Tokens must not fall even so. Therefore the file keeps a `ceiling`, which is synced before any token
above the old one is handed out: whatever was lost, everything handed out before was below it. The first to open the
file in a new boot makes the ceiling the `base` above which all tokens continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.core import table
from leasehold.errors import EngineError
from leasehold.names import HIGHEST_TOKEN
from leasehold.wires.sqlite_rows import ALL, Record

if TYPE_CHECKING:
    from leasehold.wires.sqlite_connection import Connection

CEILING_STEP = 60_000_000
"""How far ahead the ceiling is raised, in tokens (microseconds): one sync of the disk a minute, while in use."""
KEEP_IDLE = 24 * 3600 * 1_000_000
"""How long a name that nobody uses keeps its row, in microseconds."""
SWEEP_AT_ONCE = 512
LONGEST_LOG = 1000
"""How many pages the log may have before writers wait for it to be emptied."""

Position = tuple[str, str]
"""How far a sweep has come: a namespace and a name."""
START: Position = ("", "")

_REACH = "SELECT namespace, name FROM lease WHERE (namespace, name) > (?, ?) ORDER BY namespace, name LIMIT 1 OFFSET ?"
_OLD = "(namespace, name) > (?1, ?2) AND (namespace, name) <= (?3, ?4) AND turn_since <= ?5"
_FREE = "crowd = 0 AND closed_until <= ?6 AND (holder IS NULL OR (expires <= ?5 AND expires + delay <= ?6))"
_ANY_OLD = f"SELECT 1 FROM lease WHERE {_OLD} LIMIT 1"  # noqa: S608 -- a constant
_CROWDED = f"SELECT namespace, name FROM lease WHERE {_OLD} AND crowd <> 0 LIMIT 16"  # noqa: S608 -- a constant
_FORGET = f"DELETE FROM lease WHERE {_OLD} AND {_FREE} RETURNING token"  # noqa: S608 -- a constant
_AFTER_ALL = ("\U0010ffff", "")


class _Synced:
    """A transaction that is on the disk when it ends."""

    __slots__ = ("_execute", "_usual")

    def __init__(self, connection: Connection) -> None:
        self._execute = connection.execute
        [self._usual] = self._execute("PRAGMA synchronous").fetchone()

    def __enter__(self) -> None:
        self._execute("PRAGMA synchronous = full")
        try:
            self._execute("BEGIN IMMEDIATE")
        except BaseException:
            self._execute(f"PRAGMA synchronous = {self._usual}")
            raise

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            self._execute("COMMIT" if kind is None else "ROLLBACK")
        finally:
            self._execute(f"PRAGMA synchronous = {self._usual}")


def adopt_boot(connection: Connection) -> int:
    """Make the file belong to this boot; returns the ceiling. Whoever held or waited in an earlier boot is gone."""
    execute, clock = connection.execute, connection.clock
    boot, ceiling = execute("SELECT boot, ceiling FROM meta").fetchone()
    if boot == clock.boot:
        return int(ceiling)
    with _Synced(connection):
        boot, base = execute("SELECT boot, ceiling FROM meta").fetchone()
        if boot == clock.boot:  # somebody else was faster
            return int(base)
        now = clock.now()
        # Of earlier leases only the lock-delay of those that were lost is left, counted from now to be safe.
        execute(
            """
            UPDATE lease SET holder = NULL, crowd = 0, token = ?1, turn_since = ?2, closed_until = ?2 + max(
                closed_until - turn_since,
                iif(holder IS NULL, 0, delay),
                coalesce((SELECT max(delay) FROM seat
                          WHERE seat.namespace = lease.namespace AND seat.name = lease.name), 0))
            """,
            (base, now),
        )
        execute("DELETE FROM lease WHERE closed_until <= ?", (now,))
        execute("DELETE FROM seat")
        execute("DELETE FROM waiter")
        ceiling = _above(max(base, clock.stamp()))
        execute("UPDATE meta SET boot = ?, base = ?, ceiling = ?", (clock.boot, base, ceiling))
    return ceiling


def raise_ceiling(connection: Connection, token: int, patience: float) -> None:
    """Make it safe to hand out `token`, and those of the next minute. Waits for the disk."""
    ceiling = _above(token)
    connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
    with _Synced(connection):
        connection.execute("UPDATE meta SET ceiling = max(ceiling, ?)", (ceiling,))
    connection.execute("PRAGMA busy_timeout = 0")
    connection.ceiling = ceiling


def checkpoint(connection: Connection) -> None:
    """Move commits from the log into the file, and sync both.

    Writers go on meanwhile, and the log with them. Once it has become long, they have to wait for what is left of the
    work, after which the log is used again from its start.
    """
    _, logged, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if logged > LONGEST_LOG:
        connection.execute("PRAGMA busy_timeout = 1000")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def _above(token: int) -> int:
    if token >= HIGHEST_TOKEN - CEILING_STEP:
        raise EngineError(
            f"tokens have come to {token} and cannot grow much further; this host's clock must have been set far into "
            "the future: set it right, then move the lease file away, and reset the marks of its fences"
        )
    return token + CEILING_STEP


def sweep(connection: Connection, after: Position) -> Position:
    """Forget some names that nobody has used for a day, and return where to go on; their tokens do not fall.

    A name that is used again continues above `base`, which is as high as any token of a name that was forgotten.
    """
    execute, now = connection.execute, connection.now()
    end: Position | None = execute(_REACH, (*after, SWEEP_AT_ONCE - 1)).fetchone()
    old = (*after, *(end or _AFTER_ALL), now - KEEP_IDLE)
    if execute(_ANY_OLD, old).fetchone() is not None:
        execute("BEGIN IMMEDIATE")
        for name in execute(_CROWDED, old).fetchall():
            _lapse(Record(connection, *name), now)
        tokens = [token for [token] in execute(_FORGET, (*old, now)).fetchall()]
        if tokens:
            execute("UPDATE meta SET base = max(base, ?)", (max(tokens),))
        execute("COMMIT")
    return end or START


def _lapse(record: Record, now: int) -> None:
    record.load_queue(ALL, now)
    table.renew(record.entry, "", 0, 0, now)  # of nobody's lease: drops what has run out, and no more
    record.save()
