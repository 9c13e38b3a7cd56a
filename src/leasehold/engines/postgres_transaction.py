"""Locking a name for the rest of the caller's own transaction: lock, fence and write commit together, or not at all.

The name's row is locked until the transaction ends, by commit, by rollback, or with its connection. Within it the lease
table takes the name and gives it back: so nobody else sees it held, no clock can end it, nothing is left to release,
and all that remains after the commit is a higher token.
"""

from __future__ import annotations

from typing import Final

from leasehold.core import table
from leasehold.core.table import Ask, Refused
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, Misuse, NotAcquired
from leasehold.names import check_name, check_namespace, check_wait
from leasehold.settings import DEFAULT_WAIT
from leasehold.wires.postgres_caller import Transaction, asyncio_transaction, blocking_transaction, sqlstate_of
from leasehold.wires.postgres_errors import LOCK_TIMEOUT, NO_TABLE, UNIQUE_VIOLATION
from leasehold.wires.postgres_tables import dialect_of
from leasehold.wires.postgres_target import SCHEMA_NAME
from leasehold.wires.sql_table import WHOLE_QUEUE, LeaseTable, Request, Statement

SHORTEST_PATIENCE_MS: Final = 1
"""A server takes 0 for "wait for ever"."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""How long to wait before asking again whether a lease is over, in seconds."""
_NO_TRANSACTION: Final = "25P01"
_SAVEPOINT: Final = Request(Statement("SAVEPOINT leasehold_lock", ""))
_UNDO: Final = Request(Statement("ROLLBACK TO SAVEPOINT leasehold_lock", ""))
_FORGET_SAVEPOINT: Final = Request(Statement("RELEASE SAVEPOINT leasehold_lock", ""))
_PATIENCE: Final = Statement("SELECT current_setting('lock_timeout')", "")
_SET_PATIENCE: Final = Statement("SELECT set_config('lock_timeout', $1, true)", "")


def lock_in_transaction(
    connection: object, name: str, *, wait: float = DEFAULT_WAIT, namespace: str = "", schema: str = "public"
) -> int:
    """Lock a name until the transaction that is open on this connection ends; returns the token.

    `connection` is a Connection of psycopg, or a Connection or Session of SQLAlchemy. Who holds a lease on the name
    excludes the transaction, and the transaction excludes them. Raises `NotAcquired` when the name is not free within
    `wait` seconds, and then the transaction is as it was before. Errors of the driver are raised as they are.

    The token is the caller's once the transaction has committed: if it is rolled back, another may get the same.
    """
    locking = _Locking(name, wait, namespace, schema)
    return run_blocking(locking.lock(blocking_transaction(connection)))


async def lock_in_transaction_async(
    connection: object, name: str, *, wait: float = DEFAULT_WAIT, namespace: str = "", schema: str = "public"
) -> int:
    """Do the same for an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy."""
    locking = _Locking(name, wait, namespace, schema)
    return await locking.lock(await asyncio_transaction(connection))


class _Busy(Exception):
    """Why not now, and after how many seconds to ask again."""

    def __init__(self, refused: Refused) -> None:
        super().__init__()
        self.incumbent, self.ask_again = refused.incumbent, refused.ask_again / 1e6


class _Locking:
    """One call, checked before anything is sent."""

    def __init__(self, name: object, wait: object, namespace: object, schema: object) -> None:
        self._name, self._wait = check_name(name), check_wait(wait)
        if type(schema) is not str or not SCHEMA_NAME.fullmatch(schema):
            raise Misuse("schema is a name of up to 31 of a-z, 0-9 and _, and does not begin with pg_")
        # Without the time limit for transactions that stand still: this one is not ours.
        self._leases = LeaseTable(dialect_of(schema)._replace(at_clock=""), check_namespace(namespace))
        self._schema = schema

    async def lock(self, transaction: Transaction) -> int:
        """Try until the wait is over. What a failed attempt has locked is let go of before the next one."""
        world = transaction.world
        give_up_at, pause = world.now() + self._wait, FIRST_PAUSE
        holder = token = None
        raced = False
        while True:
            await self._save(transaction)
            try:
                return await self._lock_once(transaction, give_up_at - world.now())
            except _Busy as busy:
                holder, token = (busy.incumbent.about, busy.incumbent.token) if busy.incumbent else (None, None)
                await self._undo(transaction)
                rest = min(busy.ask_again, pause * (0.5 + world.chance()))
                pause = min(pause * 2, LONGEST_PAUSE)
            except Exception as error:
                state = sqlstate_of(error)
                # Whoever added the row first has committed, so it is there when asked again; unless this transaction
                # sees only what was there when it began, and then there is no way but to begin anew.
                if state not in {LOCK_TIMEOUT, *NO_TABLE} and (state != UNIQUE_VIOLATION or raced):
                    raise
                await self._undo(transaction)
                if state in NO_TABLE:
                    raise self._no_tables() from None
                rest, raced = 0.0, state == UNIQUE_VIOLATION
            left = give_up_at - world.now()
            if left <= 0:
                raise NotAcquired(self._name, wait=self._wait, holder=holder, token=token)
            await world.sleep(min(rest, left))

    async def _save(self, transaction: Transaction) -> None:
        try:
            await transaction.ask(_SAVEPOINT)
        except Exception as error:
            if sqlstate_of(error) != _NO_TRANSACTION:
                raise
            raise Misuse(
                "no transaction is open on this connection, so the lock would end at once; begin one first, such as "
                "by `with connection.transaction():`"
            ) from None

    async def _undo(self, transaction: Transaction) -> None:
        await transaction.ask(_UNDO)
        await transaction.ask(_FORGET_SAVEPOINT)

    def _no_tables(self) -> EngineError:
        return EngineError(
            f"this database has no tables of Leasehold in the schema {self._schema!r}; take any lock there once by "
            "Leasehold(url), or run what leasehold.engines.postgres.tables_sql() returns"
        )

    async def _lock_once(self, transaction: Transaction, patience: float) -> int:
        """Lock the row, and let the lease table take the name and give it back. Patience is the server's to keep."""
        [[usual]] = await transaction.ask(Request(_PATIENCE))
        patience_ms = max(int(patience * 1000), SHORTEST_PATIENCE_MS)
        await transaction.ask(Request(_SET_PATIENCE, (str(patience_ms),)))
        load = self._leases.load(self._name, depth=WHOLE_QUEUE)
        record = self._leases.record(self._name, [await transaction.ask(one) for one in load], depth=WHOLE_QUEUE)
        holder, now = transaction.world.nonce(), record.now
        taken = table.take(record.entry, Ask(holder, 1), now, now)
        if isinstance(taken, Refused):
            raise _Busy(taken)
        # Nobody has to be woken: it was free for those who queue, or they let their turns go by and are forgotten.
        table.release(record.entry, holder, now)
        for change in record.changes():
            await transaction.ask(change)
        await transaction.ask(Request(_SET_PATIENCE, (usual,)))
        await transaction.ask(_FORGET_SAVEPOINT)
        return taken.token
