"""The accept rule in SQL, for PostgreSQL, MySQL or MariaDB, and SQLite.

The steps are generators: they yield what to ask, and are sent the answer. So each is written once, and a blocking or
an async fence drives it. The first statement takes the lock on the resource's row, which orders old and new holders;
where the row is there and the token is good, it is also the last one.

The row of the empty name, which no resource can have, is the floor of those that have no row of their own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from leasehold.errors import Misuse, TokenJump, quoted
from leasehold.fences.rule import NEVER, Claim

T = TypeVar("T")

TABLE = "leasehold_fence"
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_EVERY_RESOURCE = ""
_MOST_ROUNDS = 3
"""Rows are never deleted and floors never fall, so a row that came from others meanwhile decides the next round."""


class Ask(NamedTuple):
    """One statement, with a ``:name`` for each value."""

    sql: str
    values: Mapping[str, object]


class Answer(NamedTuple):
    """How many rows it touched, and those that it returned."""

    touched: int
    rows: list[tuple[Any, ...]]


Steps = Generator[Ask, Answer, T]


class Dialect(Protocol):
    """What a fence says to one kind of database."""

    name: str

    def create(self) -> Steps[None]:
        """Make the table of floors, unless it is there."""
        ...

    def judge(self, claim: Claim) -> Steps[None]:
        """Raise the floor, or the reason why not."""
        ...

    def floor(self, claim: Claim) -> Steps[int | None]:
        """Return the highest token seen, or None."""
        ...

    def raise_all(self, claim: Claim) -> Steps[None]:
        """Raise every floor that is lower, also of resources that are not known yet."""
        ...


def check_identifier(name: str, *, what: str) -> str:
    """Return the name of a table or column that needs no escaping anywhere."""
    if type(name) is not str or not _IDENTIFIER.fullmatch(name):
        raise Misuse(
            f"{what} must be a lower-case letter or '_' and up to 30 more of a-z, 0-9 and '_', not {quoted(name)}"
        )
    return name


def check_table(table: str) -> tuple[str, ...]:
    """Return the parts of a table's name, with its schema if it was given one."""
    parts = tuple(table.split(".")) if type(table) is str and table.count(".") <= 1 else (table,)
    return tuple(check_identifier(part, what="table") for part in parts)


def values_of(claim: Claim) -> dict[str, object]:
    """The numbers that the resource compares, by the names that statements use."""
    return {**claim._asdict(), "mark": claim.mark, "most_written": claim.most_written}


def _first(answer: Answer) -> tuple[int, int]:
    return (int(answer.rows[0][0]), int(answer.rows[0][1])) if answer.rows else (NEVER, NEVER)


def _altered() -> Misuse:
    return Misuse("the table of floors refused what the rule accepts; is it changed by others than fences?")


class _Spoken:
    """What the dialects share: their table."""

    quote = '"'

    def __init__(self, table: str = TABLE) -> None:
        self.table = ".".join(f"{self.quote}{part}{self.quote}" for part in check_table(table))

    def _sql(self, text: str) -> str:
        return text.replace(TABLE, self.table)

    def _raise_all(self, claim: Claim, judged: Steps[None]) -> Steps[None]:
        try:
            yield from judged
        except TokenJump as jump:
            raise TokenJump(claim.resource, token=claim.token, seen=jump.seen, most=jump.most) from None
        sql = "UPDATE leasehold_fence SET token = :token WHERE token < :token"
        yield Ask(self._sql(sql), {"token": claim.token})


class Portable(_Spoken):
    """SQLite, and the base of PostgreSQL: a row is updated, or else inserted."""

    name = "sqlite"
    _prepare = ""
    _columns = "resource TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL, written BIGINT NOT NULL"
    _keep_every = ""
    """Whoever makes the first row of a resource holds off those who raise all floors, and waits for them."""

    _raise = """
        UPDATE leasehold_fence SET token = :token, written = CASE WHEN written < :mark THEN :mark ELSE written END
        WHERE resource = :resource AND token BETWEEN :lowest AND :token AND written <= :most_written
    """
    _insert = """
        INSERT INTO leasehold_fence (resource, token, written) VALUES (:resource, :token, :mark)
        ON CONFLICT (resource) DO NOTHING
    """
    _marks = "SELECT token, written FROM leasehold_fence WHERE resource = :resource"

    def create(self) -> Steps[None]:
        """Make the table of floors, unless it is there."""
        if self._prepare:
            yield Ask(self._prepare, {})
        yield Ask(self._sql(f"CREATE TABLE IF NOT EXISTS leasehold_fence ({self._columns})"), {})
        yield Ask(self._sql(self._insert), {"resource": _EVERY_RESOURCE, "token": NEVER, "mark": NEVER})

    def judge(self, claim: Claim) -> Steps[None]:
        """Raise the floor, or the reason why not. Again if the resource's first row came from others meanwhile."""
        values = values_of(claim)
        for _ in range(_MOST_ROUNDS):
            if (yield Ask(self._sql(self._raise), values)).touched == 1:
                return
            own = yield Ask(self._sql(self._marks), {"resource": claim.resource})
            every = own if own.rows else (yield self._every())
            refusal = claim.refusal(*_first(every))
            if refusal is not None:
                raise refusal
            if not own.rows and (yield Ask(self._sql(self._insert), values)).touched == 1:
                return
        raise _altered()

    def floor(self, claim: Claim) -> Steps[int | None]:
        """Return the highest token seen, or None."""
        own = yield Ask(self._sql(self._marks), {"resource": claim.resource})
        seen, _ = _first(own if own.rows else (yield Ask(self._sql(self._marks), {"resource": _EVERY_RESOURCE})))
        return None if seen == NEVER else seen

    def raise_all(self, claim: Claim) -> Steps[None]:
        """Raise every floor that is lower. The row of all goes first: no new row can be made meanwhile."""
        yield from self._raise_all(claim, self.judge(claim._replace(resource=_EVERY_RESOURCE)))

    def _every(self) -> Ask:
        return Ask(self._sql(self._marks) + self._keep_every, {"resource": _EVERY_RESOURCE})


class PostgreSql(Portable):
    """PostgreSQL 13 and newer, and what speaks like it."""

    name = "postgresql"
    # Two who create the same table at the same time would otherwise disturb each other.
    _prepare = "SELECT pg_advisory_xact_lock(7164756432189)"
    _columns = 'resource TEXT COLLATE "C" NOT NULL PRIMARY KEY, token BIGINT NOT NULL, written BIGINT NOT NULL'
    _keep_every = " FOR SHARE"


class MySql(_Spoken):
    """MySQL 8 and MariaDB, on InnoDB tables.

    An UPDATE that finds no row would lock the gap where it looked, and two of them would wait for each other when they
    insert; so the insert comes first. Names are bytes, since texts are equal here that differ in trailing spaces.
    """

    name = "mysql"
    quote = "`"

    # One statement, since it ends the transaction that it stands in.
    _create = """
        CREATE TABLE IF NOT EXISTS leasehold_fence (
            resource VARBINARY(255) NOT NULL PRIMARY KEY, token BIGINT NOT NULL, written BIGINT NOT NULL,
            asked BIGINT NOT NULL
        ) ENGINE = InnoDB SELECT '' AS resource, -1 AS token, -1 AS written, 0 AS asked
    """
    # The same condition thrice: it holds after the first assignment just if it held before, whether the server shows
    # the later ones the old values or the new. `asked` tells an accepted call from a refused one, also when its token
    # is not new: the count of rows is 2 where a row was changed, and 0 or 1 (as the client chose) where it was not.
    _claim = """
        INSERT INTO leasehold_fence (resource, token, written, asked) VALUES (:resource, :token, :mark, :asked)
        ON DUPLICATE KEY UPDATE
            token = IF(token <= :token AND written <= :most_written, :token, token),
            asked = IF(token <= :token AND written <= :most_written, :asked, asked),
            written = IF(token <= :token AND written <= :most_written, GREATEST(written, :mark), written)
    """
    _marks = "SELECT token, written, asked FROM leasehold_fence WHERE resource = :resource"

    def create(self) -> Steps[None]:
        """Make the table of floors, unless it is there."""
        yield Ask(self._sql(self._create), {})

    def judge(self, claim: Claim) -> Steps[None]:
        """Raise the floor, or the reason why not."""
        resource, asked = claim.resource.encode(), secrets.randbits(62)
        if claim.lowest != NEVER:
            yield from self._refuse_a_jump(claim, resource)
        if (yield Ask(self._sql(self._claim), {**values_of(claim), "resource": resource, "asked": asked})).touched == 2:
            return
        own = yield self._locked(resource, "FOR UPDATE")
        if own.rows[0][2] != asked:
            raise claim.refusal(*_first(own)) or _altered()
        # This made the first row of the resource: it is judged by what holds for all.
        refusal = claim.refusal(*_first((yield self._locked(b"", "LOCK IN SHARE MODE"))))
        if refusal is not None:
            yield Ask(self._sql("DELETE FROM leasehold_fence WHERE resource = :resource"), {"resource": resource})
            raise refusal

    def floor(self, claim: Claim) -> Steps[int | None]:
        """Return the highest token seen, or None."""
        own = yield Ask(self._sql(self._marks), {"resource": claim.resource.encode()})
        seen, _ = _first(own if own.rows else (yield Ask(self._sql(self._marks), {"resource": b""})))
        return None if seen == NEVER else seen

    def raise_all(self, claim: Claim) -> Steps[None]:
        """Raise every floor that is lower, the one of all first."""
        yield from self._raise_all(claim, self.judge(claim._replace(resource=_EVERY_RESOURCE)))

    def _refuse_a_jump(self, claim: Claim, resource: bytes) -> Steps[None]:
        own = yield self._locked(resource, "FOR UPDATE")
        every = own if own.rows else (yield self._locked(b"", "LOCK IN SHARE MODE"))
        refusal = claim.refusal(*_first(every))
        if refusal is not None:
            raise refusal

    def _locked(self, resource: bytes, lock: str) -> Ask:
        """A read of what is there now: a plain one would show what was there when the transaction first read."""
        return Ask(f"{self._sql(self._marks)} {lock}", {"resource": resource})


DIALECTS: dict[str, type[Portable | MySql]] = {
    "postgresql": PostgreSql,
    "mysql": MySql,
    "mariadb": MySql,
    "sqlite": Portable,
}
