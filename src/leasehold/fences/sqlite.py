"""A fence for what is kept in an SQLite database: the check is the first statement of the caller's own transaction.

>>> database = sqlite3.connect(":memory:")
>>> _ = database.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
>>> fence = SqliteFence(database)
>>> fence.create()
>>> with fence.writing("account/42", 34) as connection:
...     _ = connection.execute("INSERT INTO account VALUES (42, 100)")
>>> with fence.writing("account/42", 33) as connection:
...     _ = connection.execute("UPDATE account SET balance = 0")
Traceback (most recent call last):
    ...
leasehold.errors.StaleToken: token 33 is stale for 'account/42': token 34 has been seen there; a later holder is at \
work, so nothing was written
>>> database.close()
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager

from leasehold.errors import Misuse, StaleToken, TokenJump, quoted
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule

_TABLE = "leasehold_fence"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_LEGACY_TRANSACTION_CONTROL = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not have

_CREATE = """
    CREATE TABLE IF NOT EXISTS main."leasehold_fence" (
        resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, written INTEGER NOT NULL
    ) WITHOUT ROWID
"""
# A write from its start, so that a transaction that has done nothing yet takes the write lock here, patiently.
_RAISE = """
    UPDATE main."leasehold_fence" SET token = :token, written = max(written, :mark)
    WHERE resource = :resource AND token BETWEEN :lowest AND :token AND written <= :most_written
"""
_FIRST = """INSERT INTO main."leasehold_fence" (resource, token, written) VALUES (:resource, :token, :mark)"""
_EVERY_RESOURCE = ""  # no resource can have this name; its row is the floor of those that have no row of their own
_MARKS = """
    SELECT token, written FROM main."leasehold_fence" WHERE resource IN (:resource, '')
    ORDER BY resource DESC LIMIT 1
"""
_RAISE_ALL = """UPDATE main."leasehold_fence" SET token = :token WHERE token < :token"""


class SqliteFence:
    """Checks tokens in the caller's own transactions on an open `sqlite3.Connection`.

    The floors are kept in a table of their own, in the same database file as what they protect; `create` makes it.
    Cheap to construct: make one for each connection.
    """

    def __init__(self, connection: sqlite3.Connection, *, table: str = _TABLE, jump_limit: int = DAY) -> None:
        """Nothing is read or written yet."""
        if not hasattr(connection, "in_transaction"):
            raise Misuse(f"give an open sqlite3.Connection, as sqlite3.connect() returns it, not {quoted(connection)}")
        if type(table) is not str or not _IDENTIFIER.fullmatch(table):
            raise Misuse(
                f"table must be a lower-case letter or '_' and up to 30 more of a-z, 0-9 and '_', not {quoted(table)}"
            )
        self._connection, self._table, self._rule = connection, table, Rule(jump_limit)

    def create(self) -> None:
        """Make the table of floors, unless it is there. In an open transaction it is part of that transaction."""
        self._connection.execute(self._sql(_CREATE))

    def writing(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> AbstractContextManager[sqlite3.Connection]:
        """Check the token, run the block and commit, as one transaction; raises before the block if it is refused.

        Without an open transaction the block gets one of its own, which ends with the block. With an open one the
        block becomes part of it: it is never committed here, and an error undoes only what the block did. Do not
        commit inside the block.
        """
        return self._fenced(self._rule.claim(resource, token, writes=True, once=once, allow_jump=allow_jump))

    def reading(
        self, resource: str, token: int | HasToken, *, allow_jump: bool = False
    ) -> AbstractContextManager[sqlite3.Connection]:
        """Like `writing`, for a block that only reads: it raises the floor, and a write with once=True may follow."""
        return self._fenced(self._rule.claim(resource, token, writes=False, allow_jump=allow_jump))

    def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        with self.reading(resource, token, allow_jump=allow_jump):
            pass

    def check(self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> None:
        """Check the token as a bare statement of the transaction that is open, or that Python opens by itself.

        For code that manages its transactions: call it first, write, commit. A refusal leaves nothing behind.
        """
        claim = self._rule.claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        was_open = self._in_transaction()
        if not was_open and not self._opens_transactions():
            raise Misuse(
                "no transaction is open, so the check would not be one step with the write; "
                "execute BEGIN IMMEDIATE first, or use `with fence.writing(…)`"
            )
        try:
            self._judge(claim)
        except BaseException:
            if not was_open and self._in_transaction():
                self._connection.execute("ROLLBACK")
            raise

    def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        seen, _ = self._marks(self._rule.claim(resource, 0, writes=False))
        return None if seen == NEVER else seen

    def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            self.announce(resource, token, allow_jump=allow_jump)

    def raise_all_floors(self, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that every resource, known or not, has at least this floor.

        For a database that was restored from a backup: its floors are as old as the backup, so the holders of that
        time, and those that came after it, would pass. Raise all to the wall clock in microseconds, and every lease
        that was granted before the restore is stale.
        """
        claim = self._rule.claim("every resource", token, writes=False, allow_jump=allow_jump)
        with self._transaction(), contextlib.suppress(StaleToken):
            try:
                self._judge(claim._replace(resource=_EVERY_RESOURCE))
            except TokenJump as jump:
                raise TokenJump(claim.resource, token=claim.token, seen=jump.seen, most=jump.most) from None
            self._execute(_RAISE_ALL, claim)

    @contextlib.contextmanager
    def _fenced(self, claim: Claim) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        with self._transaction():
            connection.execute("SAVEPOINT leasehold_fence")
            try:
                self._judge(claim)
                yield connection
            except BaseException:
                # The savepoint is gone where the error, or the block, has ended the transaction.
                with contextlib.suppress(sqlite3.OperationalError):
                    connection.execute("ROLLBACK TO leasehold_fence")
                    connection.execute("RELEASE leasehold_fence")
                raise
            try:
                connection.execute("RELEASE leasehold_fence")
            except sqlite3.OperationalError as error:
                raise Misuse(
                    "the transaction was ended inside of the fenced block, and what came after that was not fenced; "
                    "leave commit to the end of the block (executescript() commits, too), and raise to roll back"
                ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Be part of the caller's transaction, or be one of our own."""
        connection = self._connection
        if self._in_transaction():
            yield
            return
        try:
            # Statements, not methods: commit() does nothing when the connection is in autocommit mode.
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if self._in_transaction():
                connection.execute("ROLLBACK")
            raise

    def _judge(self, claim: Claim) -> None:
        """Raise the floor, or the reason why not. The write lock is held from the first statement on."""
        if self._execute(_RAISE, claim).rowcount == 1:
            return
        seen, written = self._marks(claim)
        refusal = claim.refusal(seen, written)
        if refusal is not None:
            raise refusal
        self._execute(_FIRST, claim)

    def _marks(self, claim: Claim) -> tuple[int, int]:
        row: tuple[int, int] | None = self._execute(_MARKS, claim).fetchone()
        return row or (NEVER, NEVER)

    def _execute(self, sql: str, claim: Claim) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's own may return anything
        values = {**claim._asdict(), "mark": claim.mark, "most_written": claim.most_written}
        try:
            return cursor.execute(self._sql(sql), values)
        except sqlite3.OperationalError as error:
            if str(error).startswith("no such table") and self._table in str(error):
                raise Misuse(
                    f"the database has no table {self._table}; call create() once, when you set it up"
                ) from error
            raise

    def _in_transaction(self) -> bool:
        return self._connection.in_transaction

    def _opens_transactions(self) -> bool:
        """Whether the module opens a transaction by itself before a statement that writes."""
        legacy = getattr(self._connection, "autocommit", _LEGACY_TRANSACTION_CONTROL) == _LEGACY_TRANSACTION_CONTROL
        return legacy and self._connection.isolation_level is not None

    def _sql(self, sql: str) -> str:
        return sql.replace(f'"{_TABLE}"', f'"{self._table}"')
