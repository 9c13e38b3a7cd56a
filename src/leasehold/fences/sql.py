"""Fences for what is kept in PostgreSQL, MySQL or MariaDB: the check is the first statement of your own transaction.

    fence = SqlFence(connection)          # psycopg, psycopg2, PyMySQL, SQLAlchemy (also for SQLite), Django
    with fence.writing("account/42", lease):
        connection.execute("UPDATE account SET …")

The row that it changes is locked until your transaction ends, so that an old and a new holder cannot be between their
check and their commit at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from leasehold.errors import Misuse, StaleToken
from leasehold.fences.rule import DAY, Claim, HasToken, Rule
from leasehold.fences.sql_handles import AsyncHandle, Handle, async_handle, blocking_handle, is_missing_table
from leasehold.fences.sql_rule import DIALECTS, TABLE, Answer, Ask, Dialect, Steps
from leasehold.fences.steps import drive, drive_async

T = TypeVar("T")


class _Fence:
    """What the blocking and the asyncio fence share: everything but the waiting."""

    def __init__(self, given: Any, handle: Handle | AsyncHandle, table: str, jump_limit: int) -> None:
        self._given, self._table, self._rule = given, table, Rule(jump_limit)
        self._dialect: Dialect = DIALECTS[handle.dialect](table)

    def _claim(
        self,
        resource: str,
        token: int | HasToken,
        *,
        writes: bool = False,
        once: bool = False,
        allow_jump: bool = False,
    ) -> Claim:
        return self._rule.claim(resource, token, writes=writes, once=once, allow_jump=allow_jump)

    def _no_table(self) -> Misuse:
        return Misuse(f"the database has no table {self._table}; call create() once, when you set it up")

    def _no_transaction(self) -> Misuse:
        return Misuse(
            "no transaction is open, so the check would not be one step with the write; "
            "begin one first, or use `with fence.writing(…)`"
        )


class SqlFence(_Fence):
    """Checks tokens in the caller's own transactions on an open connection or session of blocking code.

    The floors are kept in a table of their own, in the same database as what they protect; `create` makes it. Cheap to
    construct: make one for each connection or session.
    """

    def __init__(self, connection: Any, *, table: str = TABLE, jump_limit: int = DAY) -> None:
        """Nothing is read or written yet. `table` may name a schema as well: ``"billing.leasehold_fence"``."""
        self._handle = blocking_handle(connection)
        super().__init__(connection, self._handle, table, jump_limit)

    def create(self) -> None:
        """Make the table of floors, unless it is there. On MySQL this ends an open transaction, as all DDL does."""
        with self._handle.setting_up():
            self._drive(self._dialect.create())

    def writing(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> AbstractContextManager[Any]:
        """Check the token, run the block and commit, as one transaction; raises before the block if it is refused.

        Without an open transaction the block gets one of its own, which ends with the block. With an open one the
        block becomes part of it: it is never committed here, and an error undoes only what the block did. Do not
        commit inside the block.
        """
        return self._fenced(self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump))

    def reading(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> AbstractContextManager[Any]:
        """Like `writing`, for a block that only reads: it raises the floor, and a write with once=True may follow."""
        return self._fenced(self._claim(resource, token, allow_jump=allow_jump))

    def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on.

        In an open transaction this takes effect when that transaction is committed.
        """
        with self.reading(resource, token, allow_jump=allow_jump):
            pass

    def check(self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> None:
        """Check the token as a bare statement of the transaction that is open, or that the driver opens by itself.

        For code that manages its transactions: call it first, write, commit; roll back when it raises.
        """
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        if not self._handle.will_be_in_transaction():
            raise self._no_transaction()
        self._drive(self._dialect.judge(claim))

    def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return self._drive(self._dialect.floor(self._claim(resource, 0, allow_jump=False)))

    def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            self.announce(resource, token, allow_jump=allow_jump)

    def raise_all_floors(self, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that every resource, known or not, has at least this floor; see `SqliteFence.raise_all_floors`."""
        claim = self._claim("every resource", token, allow_jump=allow_jump)
        with contextlib.suppress(StaleToken), self._handle.transaction():
            self._drive(self._dialect.raise_all(claim))

    @contextlib.contextmanager
    def _fenced(self, claim: Claim) -> Iterator[Any]:
        with self._handle.transaction():
            self._drive(self._dialect.judge(claim))
            yield self._given

    def _drive(self, steps: Steps[T]) -> T:
        return drive(steps, self._ask)

    def _ask(self, ask: Ask) -> Answer:
        try:
            return self._handle.ask(ask)
        except Exception as error:
            if is_missing_table(error):
                raise self._no_table() from error
            raise


class AsyncSqlFence(_Fence):
    """The same as `SqlFence`, for async code: of psycopg and asyncmy, and for SQLAlchemy's."""

    def __init__(self, connection: Any, *, table: str = TABLE, jump_limit: int = DAY) -> None:
        """Nothing is read or written yet."""
        self._handle = async_handle(connection)
        super().__init__(connection, self._handle, table, jump_limit)

    async def create(self) -> None:
        """Make the table of floors, unless it is there. On MySQL this ends an open transaction, as all DDL does."""
        async with self._handle.setting_up():
            await self._drive(self._dialect.create())

    def writing(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> AbstractAsyncContextManager[Any]:
        """Check the token, run the block and commit, as one transaction; raises before the block if it is refused."""
        return self._fenced(self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump))

    def reading(
        self, resource: str, token: int | HasToken, *, allow_jump: bool = False
    ) -> AbstractAsyncContextManager[Any]:
        """Like `writing`, for a block that only reads: it raises the floor, and a write with once=True may follow."""
        return self._fenced(self._claim(resource, token, allow_jump=allow_jump))

    async def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        async with self.reading(resource, token, allow_jump=allow_jump):
            pass

    async def check(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> None:
        """Check the token as a bare statement of the transaction that is open, or that the driver opens by itself."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        if not await self._handle.will_be_in_transaction():
            raise self._no_transaction()
        await self._drive(self._dialect.judge(claim))

    async def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return await self._drive(self._dialect.floor(self._claim(resource, 0, allow_jump=False)))

    async def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            await self.announce(resource, token, allow_jump=allow_jump)

    async def raise_all_floors(self, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that every resource, known or not, has at least this floor; see `SqliteFence.raise_all_floors`."""
        claim = self._claim("every resource", token, allow_jump=allow_jump)
        with contextlib.suppress(StaleToken):
            async with self._handle.transaction():
                await self._drive(self._dialect.raise_all(claim))

    @contextlib.asynccontextmanager
    async def _fenced(self, claim: Claim) -> AsyncIterator[Any]:
        async with self._handle.transaction():
            await self._drive(self._dialect.judge(claim))
            yield self._given

    async def _drive(self, steps: Steps[T]) -> T:
        return await drive_async(steps, self._ask)

    async def _ask(self, ask: Ask) -> Answer:
        try:
            return await self._handle.ask(ask)
        except Exception as error:
            if is_missing_table(error):
                raise self._no_table() from error
            raise
