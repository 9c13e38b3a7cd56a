"""The lease table in an SQL server: how one name's entry is loaded into the lease table's own shape, and written back.

Nothing here talks to a server. It makes requests, understands their answers, and says what has changed; an engine sends
them. What differs from one kind of server to another is in a `Dialect`.

The tables are those of the embedded engine: one row a name in `lease`, with its exclusive lease if there is one; other
kinds of lease in `seat`; the queue in `waiter`; and in `meta` a `base` above which names that were forgotten continue.
Whoever changes an entry has locked its row in `lease` before it reads the rest. The first of the queue stand in the
name's own row instead: all others, in `waiter`, come behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from leasehold.core import table
from leasehold.core.engine import NameStatus
from leasehold.core.table import Entry, Place, Seat
from leasehold.errors import EngineUnavailable
from leasehold.wires.sqlite_rows import ALL, QUEUE, SEATS

KEEP_IDLE: Final = 24 * 3600 * 1_000_000
"""How long a name that nobody uses keeps its row, in microseconds."""
USUAL_DEPTH: Final = 32
"""How much of a queue is loaded at first: more than can make a difference, unless the name was left alone for long."""
SWEEP_AT_ONCE: Final = 512
FRONT: Final = USUAL_DEPTH
"""How many of a queue may stand in the name's own row, which is written anew for each change."""
FIELDS: Final = 9
"""How many texts a place is there: as in `place_columns`, without the number."""
BEYOND: Final = 4
"""More of what `crowd` is made of: part of the queue is not in the row."""

Value = str | int | None
Row = tuple[Any, ...]


class Raced(Exception):
    """Somebody else added the same row at the same time, so nothing was done; now it is there and can be locked."""


class Overdue(EngineUnavailable):
    """The session had been silent for too long: the server ended it, with its locks, and never read the request."""


class Statement:
    """One statement in the words of one kind of server, to be sent again and again."""

    __slots__ = ("name", "order", "parts", "text")

    def __init__(self, text: str, name: str, order: tuple[int, ...] | None = None) -> None:
        """`order` says which value stands at each place of one that is prepared, where servers do not number them."""
        self.text, self.name, self.order = text, name, order
        self.parts = text.count(";") + 1
        """How many statements it is, where several may be sent together."""


class Request(NamedTuple):
    """A statement and its values."""

    statement: Statement
    values: tuple[Value, ...] = ()


class Front(NamedTuple):
    """How the first of a queue stand in the name's row: so many texts for each of them, one behind the other."""

    read: str
    """What reads them; `lapses` comes next."""
    put: str
    """What $14 is written as."""
    one_waits: str
    """A condition on the row, `l`: of these, somebody's patience is not over."""
    written: Callable[[list[str]], str]
    """The texts as they are written, and as the server gives them back when they are read."""
    texts_in: Callable[[str], list[str]]
    room: int = FRONT
    """For how many there is room."""


class Dialect(NamedTuple):
    """How one kind of server is talked to."""

    now: str
    """An expression: the server's wall clock in microseconds since 1970, read anew each time it is evaluated."""
    prefix: str
    """What the names of tables begin with; quoted, and with the schema if there is one."""
    after: str
    """A condition: the row's (namespace, name) is beyond ($1, $2), so written that the server uses its index."""
    write: Callable[[str, str], Statement]
    """Makes a statement of its name and a text with placeholders $1, $2, …"""
    front: Front
    """How the first of a queue stand in the name's row."""
    at_clock: str = ""
    """More columns of the statement that reads the clock, just after the lock: settings of the transaction."""


_WORDS: Final = {
    "lease_columns": "token, turn_since, closed_until, crowd, holder, since, expires, lasts, beat, delay, about",
    "seat_columns": "holder, token, mode, since, expires, lasts, beat, delay, about",
    "place_columns": "seq, holder, mode, most, since, until, address, about, lasts, delay",
    "named": "namespace = $1 AND name = $2",
    "old": f"turn_since <= {{now}} - {KEEP_IDLE}",
    "idle": f"crowd = 0 AND turn_since <= {{now}} - {KEEP_IDLE} AND closed_until <= {{now}} "
    f"AND (holder IS NULL OR (expires <= {{now}} - {KEEP_IDLE} AND expires + delay <= {{now}}))",
    "page_size": str(SWEEP_AT_ONCE),
}
_TEXTS: Final = {
    "lock_lease": "SELECT {lease_columns}, {read_front}, lapses FROM {lease} WHERE {named} FOR UPDATE",
    "read_lease": "SELECT {lease_columns}, {read_front}, lapses FROM {lease} WHERE {named}",
    # After the row is locked: a clock that was read before may be behind what the entry says by then.
    "clock": "SELECT {now}, (SELECT base FROM {meta}){at_clock}",
    "seats": "SELECT {seat_columns} FROM {seat} WHERE {named} ORDER BY token",
    # The head of the queue, and beyond it the asker's own place.
    "places": """
        (SELECT 0, {place_columns} FROM {waiter} WHERE {named} AND seq > $3 ORDER BY seq LIMIT $4)
        UNION ALL SELECT 1, {place_columns} FROM {waiter} WHERE {named} AND holder = $5""",
    "add_lease": """
        INSERT INTO {lease} (namespace, name, {lease_columns}, front, lapses)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, {put_front}, $15)""",
    "put_lease": """
        UPDATE {lease} SET token = $3, turn_since = $4, closed_until = $5, crowd = $6, holder = $7, since = $8,
        expires = $9, lasts = $10, beat = $11, delay = $12, about = $13,
        front = {put_front}, lapses = $15 WHERE {named}""",
    "add_seat": """
        INSERT INTO {seat} (namespace, name, {seat_columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)""",
    "put_seat": "UPDATE {seat} SET expires = $4, lasts = $5, beat = $6 WHERE {named} AND token = $3",
    "drop_seat": "DELETE FROM {seat} WHERE {named} AND token = $3",
    "add_place": """
        INSERT INTO {waiter} (namespace, name, {place_columns})
        SELECT $1, $2, coalesce(max(seq), 0) + 1, $3, $4, $5, $6, $7, $8, $9, $10, $11 FROM {waiter} WHERE {named}""",
    "put_place": "UPDATE {waiter} SET until = $4, address = $5 WHERE {named} AND seq = $3",
    "drop_place": "DELETE FROM {waiter} WHERE {named} AND seq = $3",
    "names": """
        SELECT name FROM {lease} l WHERE namespace = $1 AND name > $2 AND (
            (holder IS NOT NULL AND expires > {now})
            OR (crowd <> 0 AND (EXISTS (
                SELECT 1 FROM {seat} s WHERE s.namespace = $1 AND s.name = l.name AND s.expires > {now})
            OR EXISTS (
                SELECT 1 FROM {waiter} w WHERE w.namespace = $1 AND w.name = l.name AND w.until > {now})
            OR {one_waits}))
        ) ORDER BY name LIMIT $3""",
    "page": """
        SELECT namespace, name, token, {idle}, crowd <> 0 AND {old} FROM {lease}
        WHERE {after} ORDER BY namespace, name LIMIT {page_size}""",
    "raise_base": "UPDATE {meta} SET base = greatest(base, $1)",
    "forget": "DELETE FROM {lease} WHERE {named} AND token = $3 AND {idle}",
}


class LeaseTable:
    """The requests of one namespace, in one dialect."""

    def __init__(self, dialect: Dialect, namespace: str) -> None:
        tables = {name: dialect.prefix + name for name in ("lease", "seat", "waiter", "meta")}
        words = {**tables, "now": dialect.now, "after": dialect.after, "at_clock": dialect.at_clock}
        words |= {name: word.format(**words) for name, word in _WORDS.items()}
        front = dialect.front
        words |= {"read_front": front.read, "put_front": front.put, "one_waits": front.one_waits}
        self._statements = {name: dialect.write(name, text.format(**words)) for name, text in _TEXTS.items()}
        self.namespace, self.front = namespace, front

    def within(self, namespace: str) -> LeaseTable:
        """The same for another namespace."""
        other = copy(self)
        other.namespace = namespace
        return other

    def request(self, what: str, *values: Value) -> Request:
        """One of the statements with its values."""
        return Request(self._statements[what], values)

    def load(self, name: str, holder: str = "", *, depth: int = USUAL_DEPTH, lock: bool = True) -> list[Request]:
        """Ask for an entry, all but the far end of its queue. The answers make a `Record`."""
        key = (self.namespace, name)
        return [
            self.request("lock_lease" if lock else "read_lease", *key),
            self.request("clock"),
            self.request("seats", *key),
            self.places(name, holder, after=-1, limit=depth),
        ]

    def places(self, name: str, holder: str, *, after: int, limit: int) -> Request:
        """Ask for a stretch of the queue, and the holder's own place."""
        return self.request("places", self.namespace, name, after, limit, holder)

    def names(self, after: str, limit: int) -> Request:
        """Ask for names that are held or waited for, in the order of their bytes."""
        return self.request("names", self.namespace, after, limit)

    def page(self, after: tuple[str, str]) -> Request:
        """Ask for some names of all namespaces: (namespace, name, token, is idle for long, is crowded for long)."""
        return self.request("page", *after)

    def forget(self, idle: Iterable[Row]) -> list[Request]:
        """Forget names of a page, unless somebody used them meanwhile; their tokens do not fall."""
        rows = list(idle)
        if not rows:
            return []
        base = max(row[2] for row in rows)
        return [self.request("raise_base", base), *(self.request("forget", *row[:3]) for row in rows)]

    def record(self, name: str, answers: Sequence[list[Row]], *, depth: int = USUAL_DEPTH) -> Record:
        """An entry from the answers to `load`."""
        return Record(self, name, answers, depth)


class Record:
    """One name's entry. Let the lease table work on `entry`, then send `changes`."""

    __slots__ = (
        "_complete", "_key", "_lapsed", "_last_seq", "_places", "_row", "_seats", "_table", "_token", "entry", "now",
    )  # fmt: skip

    def __init__(self, of: LeaseTable, name: str, answers: Sequence[list[Row]], depth: int) -> None:
        lease, [clock], seats, places = answers
        row = lease[0] if lease else None
        self._table, self._key, self._row = of, (of.namespace, name), row
        self.now: int = clock[0]
        """The server's clock, read after the row was locked."""
        self._seats = {seat[1]: seat for seat in seats}
        self._places: dict[str, Row] = {}
        self._lapsed: list[int] = []
        self._complete, self._last_seq = False, -1
        # Without a base the tables are just being made, after others were lost: no token was given by these.
        self.entry = Entry(token=clock[1] or 0) if row is None else self._loaded(row, seats)
        self._token = self.entry.token
        if row is not None:
            self._add_front(of.front.texts_in(row[-2]))
        self.add_places(places, depth)

    @staticmethod
    def _loaded(row: Row, seats: list[Row]) -> Entry:
        token, turn_since, closed_until, _, holder, since, expires, lasts, beat, delay, about, *_ = row
        entry = Entry(token, turn_since, closed_until)
        if holder is not None:
            entry.seats.append(Seat(holder, token, "exclusive", since, expires, lasts, beat, delay, about))
        entry.seats += [Seat(*seat) for seat in seats]
        return entry

    @property
    def known(self) -> bool:
        """Whether the server has this name."""
        return self._row is not None

    @property
    def crowd(self) -> int:
        """What this name is beyond a single row. A bit that is set may be out of date; one that is not set is true."""
        seats = SEATS if any(seat.mode != "exclusive" for seat in self.entry.seats) else 0
        if not self.entry.queue and self._complete:
            return seats
        beyond = not self._complete or len(self.entry.queue) > len(self._front())
        return seats | QUEUE | (BEYOND if beyond else 0)

    def lacks(self, depth: int) -> int | None:
        """After which number more of the queue has to be loaded, so that the first `depth` who wait are known."""
        return self._last_seq if not self._complete and len(self.entry.queue) < depth else None

    def add_places(self, places: list[Row], limit: int) -> None:
        """Take in a stretch of the queue. Those whose patience ran out are not part of the entry, and will go.

        Others may stand between this stretch and the asker's own place behind it: they make no difference, and stay.
        """
        stretch = sum(not is_own for is_own, *_ in places)
        self._complete = stretch < limit
        for is_own, *place in sorted(places, key=lambda row: (row[1], row[0])):
            if not is_own:
                self._last_seq = max(self._last_seq, place[0])
            self._add_place(tuple(place))
        self.entry.queue.sort(key=self._number)

    def _add_front(self, texts: list[str]) -> None:
        """Take in those who stand in the row. They have no numbers; these are below all that there are."""
        places = list(zip(*[iter(texts)] * FIELDS, strict=True))
        for seq, (holder, mode, most, since, until, address, about, lasts, delay) in enumerate(places, -len(places)):
            times = int(since), int(until)
            self._add_place((seq, holder, mode, int(most), *times, address, about, int(lasts), int(delay)))

    def _add_place(self, place: Row) -> None:
        seq, holder, mode, most, since, until, address, about, lasts, delay = place
        if holder in self._places or seq in self._lapsed:
            return
        if until <= self.now:
            self._lapsed.append(seq)
        else:
            self._places[holder] = place
            self.entry.queue.append(Place(holder, mode, most, since, until, address, about, lasts, delay))

    def _number(self, place: Place) -> int:
        """Where a place stands; one that is new stands behind all others."""
        old = self._places.get(place.holder)
        return ALL if old is None else int(old[0])

    def _front(self) -> list[Place]:
        """Who shall stand in the row: who does so already; or, where nobody stands beyond it, also who is new.

        If nobody is left there, then those who come next, as far as they are known.
        """
        ends = ALL if self._complete else self._last_seq
        known = [place for place in self.entry.queue if self._number(place) <= ends]
        stay = [place for place in known if self._number(place) < 0]
        beyond = not self._complete or any(0 <= self._number(place) < ALL for place in known)
        return stay if stay and beyond else known[: self._table.front.room]

    def changes(self) -> list[Request]:
        """What to write, after the lease table has worked on the entry."""
        entry, request = self.entry, self._table.request
        front = self._front()
        changes = [*self._changed_places(front), *self._changed_seats()]
        lease = next((_columns(seat) for seat in entry.seats if seat.mode == "exclusive"), _NO_LEASE)
        row = (entry.token, entry.turn_since, entry.closed_until, self.crowd, *lease)
        row += (self._table.front.written(_texts(front)), min((place.until for place in front), default=0))
        if self.known and row != self._row:
            changes.append(request("put_lease", *self._key, *row))
        elif not self.known and entry.token != self._token:
            changes.append(request("add_lease", *self._key, *row))
        return changes

    def _changed_places(self, front: list[Place]) -> list[Request]:
        """What is to be written beside the row."""
        request, in_row = self._table.request, {place.holder for place in front}
        waiting = {place.holder: place for place in self.entry.queue if place.holder not in in_row}
        changes, gone = [], list(self._lapsed)
        for holder, old in self._places.items():
            place = waiting.pop(holder, None)
            if place is None:
                gone.append(old[0])
            elif (place.until, place.address) != old[5:7]:
                changes.append(request("put_place", *self._key, old[0], place.until, place.address))
        changes += [request("drop_place", *self._key, seq) for seq in gone if seq >= 0]
        for new in waiting.values():
            changes.append(request("add_place", *self._key, *_place_columns(new)))
        return changes

    def _changed_seats(self) -> list[Request]:
        request, changes, gone = self._table.request, [], set(self._seats)
        for seat in self.entry.seats:
            if seat.mode == "exclusive":
                continue
            old = self._seats.get(seat.token)
            if old is None:
                holder, *rest = _columns(seat)
                changes.append(request("add_seat", *self._key, holder, seat.token, seat.mode, *rest))
            elif (seat.expires, seat.lasts, seat.beat) != old[4:7]:
                changes.append(request("put_seat", *self._key, seat.token, seat.expires, seat.lasts, seat.beat))
            gone.discard(seat.token)
        return changes + [request("drop_seat", *self._key, token) for token in sorted(gone)]

    def lapse(self) -> None:
        """Drop what has run out, and no more."""
        table.renew(self.entry, "", 0, 0, self.now)

    def status(self) -> NameStatus | None:
        """The entry as an operator sees it; None when the server knows nothing of the name."""
        if not self.known:
            return None
        self.lapse()
        entry, now = self.entry, self.now
        return table.status_of(self._key[1], entry, now)


_NO_LEASE: Final = (None, 0, 0, 0, 0, 0, "")
WHOLE_QUEUE: Final = ALL


def _texts(front: list[Place]) -> list[str]:
    """Places as they stand in the row."""
    return [str(value) for place in front for value in _place_columns(place)]


def _place_columns(place: Place) -> tuple[Value, ...]:
    times = place.since, place.until
    return place.holder, place.mode, place.limit, *times, place.address, place.about, place.lasts, place.delay


def _columns(seat: Seat) -> tuple[Value, ...]:
    return seat.holder, seat.since, seat.expires, seat.lasts, seat.beat, seat.delay, seat.about
