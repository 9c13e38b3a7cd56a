"""MySQL and MariaDB: leases in tables, by the database's clock, with no connection held between requests.

Taking a free name is one statement, and so is giving it back, to queue for it, and to hand it over. There is no NOTIFY
here: waiters are woken by interrupting a connection of theirs that waits in the server (`leasehold.wires.mysql_ear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasehold.core.engine import Purpose, Renewal, Want
from leasehold.core.table import Ask, Place, Refused, Seat
from leasehold.engines.family import WiredFamily
from leasehold.engines.mysql_facts import REPLICAS, SETTINGS, lease_facts, warn_if_weak
from leasehold.engines.mysql_queue_sql import queue_statements
from leasehold.engines.mysql_session import MysqlSessionFamily
from leasehold.engines.sense import sensible
from leasehold.engines.sql_lease import Changed, SqlLeaseEngine
from leasehold.errors import EngineError
from leasehold.keeping import log
from leasehold.wires.mysql import MysqlWire, asyncio_wire, blocking_wire
from leasehold.wires.mysql_ear import Post
from leasehold.wires.mysql_line import Line
from leasehold.wires.mysql_packets import prepared, written
from leasehold.wires.mysql_tables import BEGIN, CLOCK, COMMIT, READ, dialect_of, tables_sql
from leasehold.wires.mysql_target import Target, target_from_client, target_from_url, warn_of_transport
from leasehold.wires.sql_table import LeaseTable, Request, Row, Statement
from leasehold.wires.urls import Hidden

__all__ = ["MysqlEngine", "MysqlFamily", "open_engine", "tables_sql"]

MOST_KNOWN: Final = 4096
"""Names that are remembered to have a row."""
NOBODY: Final = Place("", "exclusive", 1, 0, 0, "")
ADDED_OR_CHANGED: Final = (1, 2)
"""How many rows a statement says that it has changed which adds one, or changes it if it is there already."""
NOT_TOLD: Final = [(0, 0)]

# The clock stands still within the statement, and assignments are carried out in this order: whether the name is free
# is the same at each place, until `holder` is changed. A statement that waited for the row's lock reckons with a time
# that is a little past: the lease is the shorter for it. If the clock was set back meanwhile, what was granted since
# seems to have run out: so a lease that has is left to the lease table, which looks at the clock behind the lock.
_TAKE_FREE: Final = """
INSERT INTO leasehold_lease (namespace, name, token, turn_since, closed_until, crowd, holder, since, expires, lasts,
    beat, delay, about, front, lapses)
SELECT $1, $2, LAST_INSERT_ID(GREATEST(base + 1, {now})), {now}, 0, 0, $3, {now}, {now} + $4, $4, 0, $5, $6, '', 0
FROM leasehold_meta
ON DUPLICATE KEY UPDATE
    token = IF({free}, LAST_INSERT_ID(GREATEST(token + 1, {now})), token),
    turn_since = IF({free}, {now}, turn_since),
    since = IF({free}, {now}, since),
    expires = IF({free}, {now} + $4, expires),
    lasts = IF({free}, $4, lasts),
    beat = IF({free}, 0, beat),
    delay = IF({free}, $5, delay),
    about = IF({free}, $6, about),
    holder = IF({free}, $3, holder)
"""
# The same for a name that has a row, as far as is known: the server needs less than half the time for it.
_TAKE_KNOWN: Final = """
UPDATE leasehold_lease SET token = LAST_INSERT_ID(GREATEST(token + 1, {now})), turn_since = {now}, since = {now},
    expires = {now} + $4, lasts = $4, beat = 0, delay = $5, about = $6, holder = $3
WHERE namespace = $1 AND name = $2 AND {free}
"""
_FREE: Final = "crowd = 0 AND holder IS NULL AND closed_until <= {now}"
_RELEASE_ALONE: Final = """
UPDATE leasehold_lease SET holder = NULL, turn_since = {now}
WHERE namespace = $1 AND name = $2 AND holder = $3 AND crowd = 0 AND expires > {now}
"""
_RENEW: Final = """
UPDATE leasehold_{table} SET lasts = GREATEST(lasts, $5), expires = {now} + GREATEST(lasts, $5), beat = beat + 1
WHERE namespace = $1 AND name = $2 AND holder = $3 AND token = $4 AND expires > {now}
"""


class MysqlEngine(SqlLeaseEngine[Line]):
    """The operations in the words of MySQL and MariaDB. A statement that changes rows answers how many."""

    begin, commit, read = BEGIN, COMMIT, READ

    def __init__(self, family: MysqlFamily, wire: MysqlWire) -> None:
        super().__init__(family.facts, family.leases, wire)
        self._family, self._ask, self._namespace = family, wire.ask, family.leases.namespace
        self._statements, self._post = family.statements, family.post
        self._known: set[str] = set()
        """Names that had a row when they were taken. If it was forgotten since, the lease table makes another."""

    async def _take_free(self, want: Want, until: float) -> int:
        values = (
            self._namespace,
            want.name,
            want.holder,
            int(want.ttl * 1_000_000),
            int(want.delay * 1_000_000),
            want.about,
        )
        how = "take_known" if want.name in self._known else "take_free"
        token = _granted(await self._ask(Request(self._statements[how], values), until))
        if token and len(self._known) < MOST_KNOWN:
            self._known.add(want.name)
        return token

    async def _release_alone(self, name: str, holder: str, until: float) -> bool:
        request = Request(self._statements["release_alone"], (self._namespace, name, holder))
        [[changed, _]] = await self._ask(request, until)
        return bool(changed)

    async def _take_turn(self, want: Want, until: float) -> int:
        micros = int(want.ttl * 1_000_000), int(want.delay * 1_000_000)
        values = (self._namespace, want.name, want.holder, *micros, want.about)
        return _granted(await self._ask(Request(self._statements["take_turn"], values), until))

    async def _queue_at_once(self, name: str, ask: Ask, until: float) -> Refused | None:
        key = (self._namespace, name)
        values = (ask.holder, ask.mode, ask.limit, ask.patience, ask.address, ask.about, ask.ttl, ask.delay)
        queue = Request(self._statements["queue"], (*key, *values))
        incumbent = Request(self._statements["incumbent"], key)
        [[[queued, ask_again]], held] = await self._ask_all([queue, incumbent], until, commits=True)
        if not queued:
            return None
        return Refused(ask_again, _incumbent(*held[0]) if held else None)

    async def _release_to_next(self, name: str, holder: str, until: float) -> Changed[bool] | None:
        [[handed, _]], _ = await self._pass_on("hand_over", "tell_handed", name, holder, until)
        if handed:
            return Changed(True)
        [[released, crowd]], told = await self._pass_on("release_to_next", "tell_next", name, holder, until)
        if not released:
            return None
        # A head of the queue that was not told is left to the lease table, which also sees whether there is one.
        return Changed(crowd != 0, NOBODY if crowd and told == NOT_TOLD else None)

    async def _pass_on(self, step: str, tell: str, name: str, holder: str, until: float) -> list[list[Row]]:
        """Give a name back, and then tell the one who is next, if there is any; returns what came of both."""
        key, letter = (self._namespace, name), self.world.nonce()
        give_back = Request(self._statements[step], (*key, holder, letter))
        leave_letter = Request(self._statements[tell], (*key, letter))
        requests = [give_back, leave_letter, self._post.interrupt_next]
        return (await self._ask_all(requests, until, commits=True))[:2]

    async def _renew_some(self, leases: Sequence[Renewal], until: float) -> list[bool]:
        # In the order of names, as everybody does who locks several.
        ordered = sorted(set(leases))
        asked = [self._renewal("renew_lease", one) for one in ordered]
        [_, *answers, _] = await self._ask_all([self.begin, *asked, self.commit], until, commits=True)
        kept = {one for one, [[changed, _]] in zip(ordered, answers, strict=True) if changed}
        others = [one for one in ordered if one not in kept]
        if others:
            kept |= await self._renew_seats(others, until)
        return [one in kept for one in leases]

    async def _renew_seats(self, leases: Sequence[Renewal], until: float) -> set[Renewal]:
        """Renew leases that have a row of their own, while nobody else decides about their names."""
        asked = []
        for one in leases:
            asked.append(Request(self._statements["lock"], (self._namespace, one.name)))
            asked.append(self._renewal("renew_seat", one))
        [_, *answers, _] = await self._ask_all([self.begin, *asked, self.commit], until, commits=True)
        return {one for one, [[changed, _]] in zip(leases, answers[1::2], strict=True) if changed}

    def _renewal(self, statement: str, one: Renewal) -> Request:
        values = (self._namespace, one.name, one.holder, one.token, int(one.ttl * 1_000_000))
        return Request(self._statements[statement], values)

    def _wake_up(self, place: Place) -> Request | None:
        return self._post.leave(place.address, self.world.nonce(), place.holder)

    def _nudges(self, place: Place) -> list[Request]:
        return [self._post.interrupt(place.address)]

    async def _sweep(self, until: float) -> None:
        await super()._sweep(until)
        try:
            [old] = await self._ask_all([self._post.old], until)
            if old:
                drops = [self._post.drop(address, letter) for address, letter in old]
                await self._ask_all([self.begin, *drops, self.commit], until, commits=True)
        except EngineError as error:
            log().debug("letters that nobody has come for could not be swept: %s", error)

    @sensible
    async def check_purpose(self, purpose: Purpose, *, until: float) -> None:
        """Warn where grants or tokens may be lost."""
        if purpose == "correctness":
            asked = [Request(self._statements[name]) for name in ("settings", "replicas")]
            settings, [[replicas]] = await self._ask_all(asked, until)
            warn_if_weak(self.facts.address, dict(settings), replicas)

    def forked(self) -> None:
        """Let go of every connection of the family: the keeper's, too, has no thread in a child."""
        self._family.forked()


def _granted(rows: list[Row]) -> int:
    """The token, or 0. Of a row that stayed as it was a token may have been thought of, and was not given."""
    [[changed, token]] = rows
    if changed and (changed not in ADDED_OR_CHANGED or not token):
        raise ValueError("a name is taken once, and with a token")
    return int(token) if changed else 0


def _incumbent(said: str) -> Seat:
    """Who holds a name, as far as others are told."""
    token, beat, lasts, about = str.split(said, " ", 3)
    return Seat("", int(token), "exclusive", 0, 0, int(lasts), int(beat), 0, about)


class MysqlFamily(WiredFamily[MysqlEngine, MysqlWire]):
    """One database, and how to reach it in each world."""

    def __init__(self, target: Target, namespace: str, label: str, *, clock: str = CLOCK) -> None:
        """`clock` is the server's own, except in tests."""
        super().__init__(lease_facts(target.address))
        self.target, self._label = target, label
        self.leases = LeaseTable(dialect_of(clock), namespace)
        self.post = Post(clock)
        texts = {
            "take_free": _TAKE_FREE.format(now=clock, free=_FREE.format(now=clock)),
            "renew_lease": _RENEW.format(now=clock, table="lease"),
            "renew_seat": _RENEW.format(now=clock, table="seat"),
            "settings": SETTINGS,
            "replicas": REPLICAS,
        }
        often = {
            **queue_statements(clock),
            "take_known": _TAKE_KNOWN.format(now=clock, free=_FREE.format(now=clock)),
            "release_alone": _RELEASE_ALONE.format(now=clock),
        }
        self.statements: dict[str, Statement] = {name: written(name, text) for name, text in texts.items()}
        self.statements |= {name: prepared(name, text) for name, text in often.items()}

    def _blocking_wire(self) -> MysqlWire:
        return blocking_wire(self.target, self._label)

    def _asyncio_wire(self) -> MysqlWire:
        return asyncio_wire(self.target, self._label)

    def _engine_over(self, wire: MysqlWire) -> MysqlEngine:
        return MysqlEngine(self, wire)


def open_engine(on: str | object, *, namespace: str, client_label: str) -> MysqlFamily | MysqlSessionFamily:
    """Open the engine behind a URL or a client object. Nothing is sent before the first operation."""
    if isinstance(on, str):
        on = Hidden(on)
        target = target_from_url(on)
    else:
        target = target_from_client(on)
    warn_of_transport(target, stacklevel=4)
    family = MysqlSessionFamily if target.in_session else MysqlFamily
    return family(target, namespace, client_label)
