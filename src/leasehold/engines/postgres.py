"""PostgreSQL: leases in tables, by the database's clock, with no connection held between requests.

Taking a free name is one statement, and so is giving it back; waiters are woken by NOTIFY. `lock_in_transaction` locks
a name for the rest of a transaction of the caller's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from leasehold.core.engine import Mode, Purpose, Renewal, Want
from leasehold.core.table import Ask, Place, Refused, Seat
from leasehold.engines.family import WiredFamily
from leasehold.engines.postgres_facts import SETTINGS, lease_facts, warn_if_weak
from leasehold.engines.postgres_queue_sql import queue_statements
from leasehold.engines.postgres_session import PostgresSessionFamily
from leasehold.engines.postgres_transaction import lock_in_transaction, lock_in_transaction_async
from leasehold.engines.sense import sensible
from leasehold.engines.sql_lease import Changed, SqlLeaseEngine
from leasehold.wires.postgres import PostgresWire, asyncio_wire, blocking_wire
from leasehold.wires.postgres_errors import nonsense
from leasehold.wires.postgres_line import Line
from leasehold.wires.postgres_tables import CLOCK, LAZILY, dialect_of, prefix_of, tables_sql
from leasehold.wires.postgres_target import Target, target_from_client, target_from_url, warn_of_transport
from leasehold.wires.sql_listen import key_of
from leasehold.wires.sql_table import LeaseTable, Request, Row, Statement
from leasehold.wires.urls import Hidden

__all__ = [
    "PostgresEngine",
    "PostgresFamily",
    "lock_in_transaction",
    "lock_in_transaction_async",
    "open_engine",
    "tables_sql",
]

MOST_KNOWN: Final = 4096
"""Names that are remembered to have a row."""
_AND_LAZILY: Final = " AND set_config('synchronous_commit', 'off', true) = 'off'"
# The clock is read anew at each place: what stands in VALUES is evaluated before the row is locked, and the rest after.
_TAKE_FREE: Final = """
INSERT INTO {prefix}lease AS l
SELECT $1, $2, greatest(meta.base + 1, {now}), {now}, 0, 0, $3, {now}, {now} + $4, $4, 0, $5, $6
FROM {prefix}meta AS meta{lazily}
ON CONFLICT (namespace, name) DO UPDATE SET
    token = greatest(l.token + 1, {now}), turn_since = {now}, holder = $3, since = {now}, expires = {now} + $4,
    lasts = $4, beat = 0, delay = $5, about = $6
WHERE l.crowd = 0 AND l.closed_until <= {now} AND (l.holder IS NULL OR (l.expires <= {now} AND l.delay = 0))
RETURNING token, holder
"""
# The same for a name that has a row, as far as is known: the server needs a quarter less for the pair.
_TAKE_KNOWN: Final = """
UPDATE {prefix}lease SET token = greatest(token + 1, {now}), turn_since = {now}, holder = $3, since = {now},
    expires = {now} + $4, lasts = $4, beat = 0, delay = $5, about = $6
WHERE namespace = $1 AND name = $2 AND crowd = 0 AND closed_until <= {now}
    AND (holder IS NULL OR (expires <= {now} AND delay = 0)){lazily}
RETURNING token, holder
"""
# Nobody waits for the disk here. Whatever the order of conditions, a row that is changed has met all of them.
_RELEASE_ALONE: Final = """
UPDATE {prefix}lease SET holder = NULL, turn_since = {now}
WHERE namespace = $1 AND name = $2 AND holder = $3 AND crowd = 0 AND expires > {now}{lazily} RETURNING 1
"""
_RENEW: Final = """
UPDATE {prefix}{table} AS l SET
    lasts = greatest(l.lasts, r.ttl), expires = {now} + greatest(l.lasts, r.ttl), beat = l.beat + 1
FROM jsonb_to_recordset($2::jsonb) AS r(name text, holder text, token bigint, ttl bigint)
WHERE l.namespace = $1 AND l.name = r.name AND l.holder = r.holder AND l.token = r.token AND l.expires > {now}
RETURNING l.holder, l.token
"""
# Who listens holds the lock; who gets it finds nobody there, and gives it back with the end of the transaction.
_WAKE: Final = (
    "SELECT CASE WHEN pg_try_advisory_xact_lock($3::bigint) THEN false ELSE pg_notify($1, $2)::text IS NOT NULL END"
)


class PostgresEngine(SqlLeaseEngine[Line]):
    """The operations in PostgreSQL's words."""

    begin = Request(Statement("BEGIN", "leasehold_begin"))
    commit = Request(Statement("COMMIT", "leasehold_commit"))
    read = Request(Statement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "leasehold_read"))
    lazily: Request | None = Request(
        Statement("SELECT set_config('synchronous_commit', 'off', true)", "leasehold_lazily")
    )

    def __init__(self, family: PostgresFamily, wire: PostgresWire) -> None:
        super().__init__(family.facts, family.leases, wire)
        self._family, self._ask, self._namespace = family, wire.ask, family.leases.namespace
        self._statements = statements = family.statements
        self._take_any_name, self._take_known_name = statements["take_free"], statements["take_known"]
        self._release_alone_statement = statements["release_alone"]
        self._known: set[str] = set()
        """Names that had a row when they were taken. If it was forgotten since, the lease table makes another."""

    async def _take_free(self, want: Want, until: float) -> int:
        name, holder, ttl, _, _, delay, about = want
        values = (self._namespace, name, holder, int(ttl * 1_000_000), int(delay * 1_000_000), about)
        statement = self._take_known_name if name in self._known else self._take_any_name
        token = self._granted(want, await self._ask(Request(statement, values), until))
        if token and len(self._known) < MOST_KNOWN:
            self._known.add(name)
        return token

    def _granted(self, want: Want, rows: list[Row]) -> int:
        """The token, or 0. A grant names its holder, so that nobody takes the answer to somebody else for its own."""
        if not rows:
            return 0
        if len(rows) == 1:
            token, holder = rows[0]
            if type(token) is int and token > 0 and holder == want.holder:
                return token
        self._wire.distrust()
        raise nonsense(rows, self.facts.address)

    async def _release_alone(self, name: str, holder: str, until: float) -> bool:
        values = (self._namespace, name, holder)
        return bool(await self._ask(Request(self._release_alone_statement, values), until))

    async def _take_turn(self, want: Want, until: float) -> int:
        micros = int(want.ttl * 1_000_000), int(want.delay * 1_000_000)
        values = (self._namespace, want.name, want.holder, *micros, want.about)
        return self._granted(want, await self._ask(Request(self._statements["take_turn"], values), until))

    async def _queue_at_once(self, name: str, ask: Ask, until: float) -> Refused | None:
        values = (ask.holder, ask.mode, ask.limit, ask.patience, ask.address, ask.about, ask.ttl, ask.delay)
        rows = await self._ask(Request(self._statements["queue"], (self._namespace, name, *values)), until)
        if not rows:
            return None
        [[ask_again, token, beat, lasts, about, _]] = rows
        return Refused(ask_again, Seat("", token, "exclusive", 0, 0, lasts, beat, 0, about))

    async def _release_to_next(self, name: str, holder: str, until: float) -> Changed[bool] | None:
        values = (self._namespace, name, holder)
        rows = await self._ask(Request(self._statements["hand_over"], values), until)
        if rows:
            [[crowd, *_]] = rows
            return Changed(crowd != 0)
        rows = await self._ask(Request(self._statements["release_to_next"], values), until)
        if not rows:
            return None
        [[crowd, told, _, *head]] = rows
        return Changed(crowd != 0, None if told else _place(*head))

    async def _renew_some(self, leases: Sequence[Renewal], until: float) -> list[bool]:
        asked = json.dumps(
            [
                {"name": one.name, "holder": one.holder, "token": one.token, "ttl": int(one.ttl * 1_000_000)}
                for one in leases
            ]
        )
        both = [Request(self._statements[table], (self._namespace, asked)) for table in ("renew_lease", "renew_seat")]
        [_, *answers, _] = await self._ask_all([self.begin, *both, self.commit], until, commits=True)
        kept = {row for rows in answers for row in rows}
        return [(one.holder, one.token) in kept for one in leases]

    def _wake_up(self, place: Place) -> Request | None:
        key = key_of(place.address)
        return None if key is None else Request(self._statements["wake"], (place.address, place.holder, key))

    @sensible
    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn where grants or tokens may be lost."""
        if purpose == "correctness":
            [settings] = await self._ask(Request(self._statements["settings"]), until)
            warn_if_weak(self.facts.address, settings, durable=self._family.target.durable)

    def forked(self) -> None:
        """Let go of every connection of the family: the keeper's, too, has no thread in a child."""
        self._family.forked()


class PostgresFamily(WiredFamily[PostgresEngine, PostgresWire]):
    """One database, and how to reach it in each world."""

    def __init__(self, target: Target, namespace: str, label: str, *, clock: str = CLOCK) -> None:
        """`clock` is the server's own, except in tests."""
        super().__init__(lease_facts(target.address))
        self.target, self._label = target, label
        self.leases = LeaseTable(dialect_of(target.schema, clock), namespace)
        words = {"prefix": prefix_of(target.schema), "now": clock}
        texts = {
            "take_free": _TAKE_FREE.format(lazily="" if target.durable else f", {LAZILY}", **words),
            "take_known": _TAKE_KNOWN.format(lazily="" if target.durable else _AND_LAZILY, **words),
            "release_alone": _RELEASE_ALONE.format(lazily=_AND_LAZILY, **words),
            **queue_statements(**words, durable=target.durable),
            "renew_lease": _RENEW.format(table="lease", **words),
            "renew_seat": _RENEW.format(table="seat", **words),
            "wake": _WAKE,
            "settings": SETTINGS,
        }
        self.statements = {name: Statement(text, f"leasehold_{name}") for name, text in texts.items()}

    def _blocking_wire(self) -> PostgresWire:
        return blocking_wire(self.target, self._label)

    def _asyncio_wire(self) -> PostgresWire:
        return asyncio_wire(self.target, self._label)

    def _engine_over(self, wire: PostgresWire) -> PostgresEngine:
        return PostgresEngine(self, wire)


def _place(holder: str, mode: Mode, most: str, *more: str) -> Place:
    """A place in the queue as it stands in the name's row: nothing but texts."""
    since, until, address, about, lasts, delay = more
    return Place(holder, mode, int(most), int(since), int(until), address, about, int(lasts), int(delay))


def open_engine(on: str | object, *, namespace: str, client_label: str) -> PostgresFamily | PostgresSessionFamily:
    """Open the engine behind a URL or a client object. Nothing is sent before the first operation."""
    if isinstance(on, str):
        on = Hidden(on)
        target = target_from_url(on)
    else:
        target = target_from_client(on)
    warn_of_transport(target, stacklevel=4)
    family = PostgresSessionFamily if target.kind == "session" else PostgresFamily
    return family(target, namespace, client_label)
