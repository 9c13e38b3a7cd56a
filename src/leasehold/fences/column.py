"""A fence in the row itself: the check rides in your own UPDATE, and costs no statement of its own.

    fence = ColumnFence(connection, "account")            # has a column: fence BIGINT NOT NULL DEFAULT -1
    fence.update(42, lease, {"balance": 100})             # UPDATE account SET balance = 100, fence = … WHERE …

A floor that is in the row would go with it, so `delete` leaves the floor in the table of `SqlFence`, and `insert` looks
for it there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from leasehold.errors import Misuse, StaleToken
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.fences.sql_handles import AsyncHandle, Handle, async_handle, blocking_handle
from leasehold.fences.sql_rule import DIALECTS, TABLE, Ask, Dialect, Steps, check_identifier, check_table
from leasehold.fences.sql_rule import values_of as values_of_claim
from leasehold.fences.steps import drive, drive_async
from leasehold.watching import refused

T = TypeVar("T")

_MOST_ROUNDS = 3
"""A row that others made or changed meanwhile is judged in the next round."""


class _Column:
    """What the blocking and the asyncio fence share: the statements."""

    def __init__(
        self,
        handle: Handle | AsyncHandle,
        table: str,
        *,
        key: str,
        column: str,
        written: str | None,
        floors: str,
        jump_limit: int,
    ) -> None:
        self._rule, self._name = Rule(jump_limit), check_table(table)[-1]
        self._floors: Dialect = DIALECTS[handle.dialect](floors)
        self._mysql = self._floors.name == "mysql"
        self._lock = "" if handle.dialect == "sqlite" else " FOR UPDATE"
        self._table = ".".join(self._quoted(part, "table") for part in check_table(table))
        self._key, self._column = self._quoted(key, "key"), self._quoted(column, "column")
        self._written = None if written is None else self._quoted(written, "written")
        self._seen = f"{self._column} BETWEEN :lowest AND :token" + (
            f" AND {self._written} <= :most_written" if self._written else ""
        )

    def _quoted(self, name: str, what: str) -> str:
        mark = "`" if self._mysql else '"'
        return f"{mark}{check_identifier(name, what=what)}{mark}"

    def resource(self, key: object) -> str:
        """The name of a row in refusals, and in the table of floors."""
        return f"{self._name}/{key}"

    def _claim(
        self, key: object, token: int | HasToken, *, writes: bool, once: bool = False, allow_jump: bool
    ) -> Claim:
        if once and self._written is None:
            raise Misuse("once=True needs a second column: ColumnFence(…, written='fence_written')")
        return self._rule.claim(self.resource(key), token, writes=writes, once=once, allow_jump=allow_jump)

    def _marks(self, claim: Claim) -> str:
        """The assignments that raise the floor."""
        marks = f"{self._column} = :token"
        return f"{marks}, {self._written} = :token" if self._written and claim.writes else marks

    # Statements; where a name stands in them, it is a checked identifier.

    def _updating(self, claim: Claim, key: object, values: Mapping[str, object]) -> Ask:
        names = [self._quoted(name, "column") for name in values]
        changes = "".join(f"{name} = :value{number}, " for number, name in enumerate(names))
        given = {f"value{number}": value for number, value in enumerate(values.values())}
        sql = f"UPDATE {self._table} SET {changes}{self._marks(claim)} WHERE {self._key} = :key AND {self._seen}"  # noqa: S608
        return Ask(sql, {**values_of_claim(claim), "key": key, **given})

    def _update(self, claim: Claim, key: object, values: Mapping[str, object]) -> Steps[bool]:
        """Whether there was such a row; raises where it refuses."""
        updating = self._updating(claim, key, values)
        for _ in range(_MOST_ROUNDS):
            if (yield updating).touched == 1:
                return True
            if not (yield from self._judged(claim, key)):
                return False
            if self._mysql:
                # MySQL counts a row only where something became different. The row is locked and accepts: this time
                # it is certain to match, whatever the first time came to.
                yield updating
                return True
        raise Misuse("the row refused what the rule accepts; is its fence changed by others?")

    def _judged(self, claim: Claim, key: object) -> Steps[bool]:
        """Whether there is such a row, and it accepts; one that is gone may have left its floor."""
        columns = f"{self._column}, {self._written or NEVER}"
        sql = f"SELECT {columns} FROM {self._table} WHERE {self._key} = :key{self._lock}"  # noqa: S608
        rows = (yield Ask(sql, {"key": key})).rows
        if rows:
            refusal = claim.refusal(int(rows[0][0]), int(rows[0][1]))
            if refusal is not None:
                raise refusal
            return True
        left = yield from self._floors.floor(claim)
        if left is not None and left > claim.token:
            raise refused(StaleToken(claim.resource, token=claim.token, seen=left))
        return False

    def _insert(self, claim: Claim, key: object, values: Mapping[str, object]) -> Steps[None]:
        yield from self._floors.judge(claim)
        row = {self._key: key, self._column: claim.token}
        if self._written:
            row[self._written] = claim.token
        row.update({self._quoted(name, "column"): value for name, value in values.items()})
        places = ", ".join(f":value{number}" for number in range(len(row)))
        sql = f"INSERT INTO {self._table} ({', '.join(row)}) VALUES ({places})"  # noqa: S608
        yield Ask(sql, {f"value{number}": value for number, value in enumerate(row.values())})

    def _delete(self, claim: Claim, key: object) -> Steps[bool]:
        yield from self._floors.judge(claim)
        sql = f"DELETE FROM {self._table} WHERE {self._key} = :key AND {self._seen}"  # noqa: S608
        if (yield Ask(sql, {**values_of_claim(claim), "key": key})).touched == 1:
            return True
        yield from self._judged(claim, key)
        return False

    def _read(self, claim: Claim, key: object, columns: Sequence[str]) -> Steps[tuple[Any, ...] | None]:
        if not (yield from self._update(claim, key, {})):
            return None
        listed = ", ".join(self._quoted(name, "column") for name in columns)
        rows = (yield Ask(f"SELECT {listed} FROM {self._table} WHERE {self._key} = :key", {"key": key})).rows  # noqa: S608
        return rows[0] if rows else None

    def _add(self, types: str = "BIGINT NOT NULL DEFAULT -1") -> Steps[None]:
        for name in filter(None, (self._column, self._written)):
            yield Ask(f"ALTER TABLE {self._table} ADD COLUMN {name} {types}", {})


class ColumnFence(_Column):
    """Checks tokens in a column of the rows that it protects, on what `SqlFence` takes.

    Each call joins the transaction that is open, or is one of its own. The table of floors of `SqlFence` is needed for
    `insert` and `delete`: make it with its `create`.
    """

    def __init__(
        self,
        connection: Any,
        table: str,
        *,
        key: str = "id",
        column: str = "fence",
        written: str | None = None,
        floors: str = TABLE,
        jump_limit: int = DAY,
    ) -> None:
        """Nothing is read or written yet. `written` names a second column, which `once=True` needs."""
        self._handle = blocking_handle(connection)
        super().__init__(
            self._handle, table, key=key, column=column, written=written, floors=floors, jump_limit=jump_limit
        )

    def add_column(self) -> None:
        """Add the column, or both, to the table, once."""
        with self._handle.setting_up():
            drive(self._add(), self._handle.ask)

    def update(
        self,
        key: object,
        token: int | HasToken,
        values: Mapping[str, object],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> bool:
        """Change columns of one row, and return whether there is such a row."""
        return self._ride(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), key, values)

    def insert(
        self, key: object, token: int | HasToken, values: Mapping[str, object], *, allow_jump: bool = False
    ) -> None:
        """Make a row, unless a later holder has deleted it already."""
        self._do(self._insert(self._claim(key, token, writes=True, allow_jump=allow_jump), key, values))

    def delete(self, key: object, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete the row, and return whether it was there. Its floor stays, in the table of floors."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        return self._do(self._delete(claim, key))

    def read(
        self, key: object, token: int | HasToken, columns: Sequence[str], *, allow_jump: bool = False
    ) -> tuple[Any, ...] | None:
        """Return columns of the row, or None; no earlier holder can change it any more when that is committed."""
        return self._do(self._read(self._claim(key, token, writes=False, allow_jump=allow_jump), key, columns))

    def announce(self, key: object, token: int | HasToken, *, allow_jump: bool = False) -> bool:
        """Raise the row's floor before the work starts, and return whether there is such a row."""
        return self._ride(self._claim(key, token, writes=False, allow_jump=allow_jump), key, {})

    def _ride(self, claim: Claim, key: object, values: Mapping[str, object]) -> bool:
        """Change the row by one statement, which needs no transaction around it unless the row does not accept it."""
        if self._handle.stands_alone() and self._handle.ask(self._updating(claim, key, values)).touched == 1:
            return True
        return self._do(self._update(claim, key, values))

    def _do(self, steps: Steps[T]) -> T:
        with contextlib.nullcontext() if self._handle.in_transaction() else self._handle.transaction():
            return drive(steps, self._handle.ask)


class AsyncColumnFence(_Column):
    """The same as `ColumnFence`, on what `AsyncSqlFence` takes."""

    def __init__(
        self,
        connection: Any,
        table: str,
        *,
        key: str = "id",
        column: str = "fence",
        written: str | None = None,
        floors: str = TABLE,
        jump_limit: int = DAY,
    ) -> None:
        """Nothing is read or written yet. `written` names a second column, which `once=True` needs."""
        self._handle = async_handle(connection)
        super().__init__(
            self._handle, table, key=key, column=column, written=written, floors=floors, jump_limit=jump_limit
        )

    async def add_column(self) -> None:
        """Add the column, or both, to the table, once. On MySQL this ends an open transaction, as all DDL does."""
        async with self._handle.setting_up():
            await drive_async(self._add(), self._handle.ask)

    async def update(
        self,
        key: object,
        token: int | HasToken,
        values: Mapping[str, object],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> bool:
        """Change columns of one row, and return whether there is such a row."""
        return await self._ride(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), key, values)

    async def insert(
        self, key: object, token: int | HasToken, values: Mapping[str, object], *, allow_jump: bool = False
    ) -> None:
        """Make a row, unless a later holder has deleted it already."""
        await self._do(self._insert(self._claim(key, token, writes=True, allow_jump=allow_jump), key, values))

    async def delete(self, key: object, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete the row, and return whether it was there. Its floor stays, in the table of floors."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        return await self._do(self._delete(claim, key))

    async def read(
        self, key: object, token: int | HasToken, columns: Sequence[str], *, allow_jump: bool = False
    ) -> tuple[Any, ...] | None:
        """Return columns of the row, or None; no earlier holder can change it any more when that is committed."""
        claim = self._claim(key, token, writes=False, allow_jump=allow_jump)
        return await self._do(self._read(claim, key, columns))

    async def announce(self, key: object, token: int | HasToken, *, allow_jump: bool = False) -> bool:
        """Raise the row's floor before the work starts, and return whether there is such a row."""
        return await self._ride(self._claim(key, token, writes=False, allow_jump=allow_jump), key, {})

    async def _ride(self, claim: Claim, key: object, values: Mapping[str, object]) -> bool:
        """Change the row by one statement, which needs no transaction around it unless the row does not accept it."""
        if self._handle.stands_alone() and (await self._handle.ask(self._updating(claim, key, values))).touched == 1:
            return True
        return await self._do(self._update(claim, key, values))

    async def _do(self, steps: Steps[T]) -> T:
        async with contextlib.nullcontext() if self._handle.in_transaction() else self._handle.transaction():
            return await drive_async(steps, self._handle.ask)
