"""One name's entry as it stands in the file: loaded into the lease table's own shape, and written back.

The usual case, an exclusive lease on a free name, is a single statement on a single row. `crowd` says when a name is
more than that row: other kinds of lease sit in `seat`, the queue is in `waiter`. Passing an exclusive lease down its
queue has statements of its own. All else is done by the lease table, between ``BEGIN IMMEDIATE`` and ``COMMIT``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.core.table import LATENESS, LONGEST_SILENCE, SLACK, TURN, Ask, Entry, Place, Released, Seat

if TYPE_CHECKING:
    from leasehold.core.engine import Renewal, Want
    from leasehold.wires.sqlite_connection import Connection

SEATS, QUEUE = 1, 2
"""What `crowd` is made of. A bit that is set may be out of date; one that is not set is true."""
ALL = 1 << 62

# Where three words are allowed they are compared one by one: of a list SQLite makes a table, anew for each row.
SCHEMA = """
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    boot TEXT NOT NULL,
    base INTEGER NOT NULL,
    ceiling INTEGER NOT NULL
) STRICT;
CREATE TABLE lease (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    token INTEGER NOT NULL,
    turn_since INTEGER NOT NULL,
    closed_until INTEGER NOT NULL,
    crowd INTEGER NOT NULL,
    holder TEXT,
    since INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    lasts INTEGER NOT NULL,
    beat INTEGER NOT NULL,
    delay INTEGER NOT NULL,
    about TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE seat (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    token INTEGER NOT NULL,
    holder TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode IN ('shared', 'permit')),
    since INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    lasts INTEGER NOT NULL,
    beat INTEGER NOT NULL,
    delay INTEGER NOT NULL,
    about TEXT NOT NULL,
    PRIMARY KEY (namespace, name, token)
) STRICT, WITHOUT ROWID;
CREATE TABLE waiter (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    holder TEXT NOT NULL,
    mode TEXT NOT NULL CHECK (mode = 'exclusive' OR mode = 'shared' OR mode = 'permit'),
    most INTEGER NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    address TEXT NOT NULL,
    about TEXT NOT NULL,
    PRIMARY KEY (namespace, name, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX waiter_by_holder ON waiter (holder);
"""

# The stamp is the token: were it not above the name's last token, these change nothing, and the lease table decides.
_HELD = (
    "token = ?3, turn_since = ?5, holder = ?4, since = ?5, expires = ?6, lasts = ?7, beat = 0, delay = ?8, about = ?9"
)
_IS_FREE = "token < ?3 AND closed_until <= ?5 AND (holder IS NULL OR (expires <= ?5 AND delay = 0))"
_THIS = "namespace = ?1 AND name = ?2"
_TAKE_NEW = f"""
INSERT INTO lease SELECT ?1, ?2, ?3, ?5, 0, 0, ?4, ?5, ?6, ?7, 0, ?8, ?9 FROM meta WHERE base < ?3
ON CONFLICT (namespace, name) DO UPDATE SET {_HELD} WHERE crowd = 0 AND {_IS_FREE}
"""  # noqa: S608 -- a constant
_TAKE_AGAIN = f"UPDATE lease SET {_HELD} WHERE {_THIS} AND crowd = 0 AND {_IS_FREE}"  # noqa: S608 -- a constant
_NTH_IN_QUEUE = (
    "(SELECT {} FROM waiter WHERE namespace = ?1 AND name = ?2 AND until > {} ORDER BY seq LIMIT 1 OFFSET {})"
)
# The one behind must not need to be told that it is the first now, else the lease table has to see to it.
_TAKE_IN_TURN = f"""
UPDATE lease SET {_HELD} WHERE {_THIS} AND crowd = {QUEUE} AND {_IS_FREE}
AND {_NTH_IN_QUEUE.format("holder", "?5", 0)} = ?4
AND coalesce({_NTH_IN_QUEUE.format("until", "?5", 1)}, 0) <= ?6 + {LATENESS + SLACK}
"""  # noqa: S608 -- a constant
_LEAVE_QUEUE = """
DELETE FROM waiter WHERE namespace = ?1 AND name = ?2
AND seq <= (SELECT seq FROM waiter WHERE holder = ?3 AND namespace = ?1 AND name = ?2)
"""
_GIVE_BACK = f"UPDATE lease SET holder = NULL, turn_since = ?4 WHERE {_THIS} AND holder = ?3 AND expires > ?4"  # noqa: S608
_RELEASE_ALONE = f"{_GIVE_BACK} AND crowd = 0"
_RELEASE_TO_QUEUE = f"""
{_GIVE_BACK} AND crowd = {QUEUE} AND closed_until <= ?4
RETURNING {_NTH_IN_QUEUE.format("address || ' ' || holder", "?4", 0)}
"""
_RENEW = """
UPDATE {} SET lasts = max(lasts, ?5), expires = ?6 + max(lasts, ?5), beat = beat + 1
WHERE namespace = ?1 AND name = ?2 AND holder = ?3 AND token = ?4 AND expires > ?6
"""
_RENEW_LEASE, _RENEW_SEAT = _RENEW.format("lease"), _RENEW.format("seat")

NAMES = """
SELECT name FROM lease WHERE namespace = ?1 AND name > ?2 AND (
    (holder IS NOT NULL AND expires > ?3)
    OR (crowd & 1 AND EXISTS (
        SELECT 1 FROM seat WHERE seat.namespace = ?1 AND seat.name = lease.name AND seat.expires > ?3))
    OR (crowd & 2 AND EXISTS (
        SELECT 1 FROM waiter WHERE waiter.namespace = ?1 AND waiter.name = lease.name AND waiter.until > ?3))
) ORDER BY name LIMIT ?4
"""
"""Names that are held or waited for, after a given one."""
_LEASE = """
SELECT token, turn_since, closed_until, crowd, holder, since, expires, lasts, beat, delay, about
FROM lease WHERE namespace = ? AND name = ?
"""
_SEATS = """
SELECT holder, token, mode, since, expires, lasts, beat, delay, about
FROM seat WHERE namespace = ? AND name = ? ORDER BY token
"""
_PLACE_COLUMNS = "seq, holder, mode, most, since, until, address, about"
_PLACES = f"""
SELECT {_PLACE_COLUMNS} FROM waiter WHERE namespace = ? AND name = ? AND seq > ? ORDER BY seq LIMIT ?
"""  # noqa: S608 -- a constant
_PLACE_OF = f"""
SELECT {_PLACE_COLUMNS} FROM waiter WHERE holder = ? AND namespace = ? AND name = ?
"""  # noqa: S608 -- a constant

_PUT_LEASE = """
INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET
    token = excluded.token, turn_since = excluded.turn_since, closed_until = excluded.closed_until,
    crowd = excluded.crowd, holder = excluded.holder, since = excluded.since, expires = excluded.expires,
    lasts = excluded.lasts, beat = excluded.beat, delay = excluded.delay, about = excluded.about
"""
_NO_LEASE = (None, 0, 0, 0, 0, 0, "")
_PUT_SEAT = """
INSERT OR REPLACE INTO seat (namespace, name, holder, token, mode, since, expires, lasts, beat, delay, about)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD_PLACE = """
INSERT INTO waiter VALUES (
    ?1, ?2, (SELECT coalesce(max(seq), 0) + 1 FROM waiter WHERE namespace = ?1 AND name = ?2),
    ?3, ?4, ?5, ?6, ?7, ?8, ?9
)
"""
_MOVE_PLACE = "UPDATE waiter SET until = ?, address = ? WHERE namespace = ? AND name = ? AND seq = ?"


def take_free(connection: Connection, namespace: str, want: Want, known: bool) -> int:
    """Take a name that is free and that nobody waits for, in one statement; returns the token, or 0.

    A name that is `known` to have a row costs less.
    """
    stamp = connection.stamp()
    if stamp >= connection.ceiling:
        return 0
    values = _held(namespace, want, connection.now(), stamp)
    return stamp if connection.execute(_TAKE_AGAIN if known else _TAKE_NEW, values).rowcount == 1 else 0


def take_in_turn(connection: Connection, namespace: str, want: Want, now: int, stamp: int) -> bool:
    """Within a transaction: take a free name whose queue the asker heads; False when it is not as simple."""
    if stamp >= connection.ceiling:
        return False
    if connection.execute(_TAKE_IN_TURN, _held(namespace, want, now, stamp)).rowcount != 1:
        return False
    connection.execute(_LEAVE_QUEUE, (namespace, want.name, want.holder))
    return True


def _held(namespace: str, want: Want, now: int, stamp: int) -> tuple[Any, ...]:
    name, holder, seconds, _, _, delay, about = want
    ttl = int(seconds * 1_000_000)
    return namespace, name, stamp, holder, now, now + ttl, ttl, int(delay * 1_000_000), about


def release_alone(connection: Connection, namespace: str, name: str, holder: str) -> bool:
    """Give back an exclusive lease that nobody waits for, in one statement; False when it is not as simple."""
    return connection.execute(_RELEASE_ALONE, (namespace, name, holder, connection.now())).rowcount == 1


def release_to_queue(connection: Connection, namespace: str, name: str, holder: str) -> Released | None:
    """Give back an exclusive lease that others wait for, in one statement; None when it is not as simple."""
    values = (namespace, name, holder, connection.now())
    released = connection.execute(_RELEASE_TO_QUEUE, values).fetchall()
    if not released:
        return None
    [[head]] = released
    if head is None:
        return Released(True, None)
    address, _, waiter = head.partition(" ")
    return Released(True, Place(waiter, "exclusive", 1, 0, 0, address))


def renew(connection: Connection, namespace: str, lease: Renewal, now: int) -> bool:
    """Prolong a lease, within a transaction: the lease table's `renew` as a statement, for there are many of them."""
    values = (namespace, lease.name, lease.holder, lease.token, int(lease.ttl * 1_000_000), now)
    execute = connection.execute
    return execute(_RENEW_LEASE, values).rowcount == 1 or execute(_RENEW_SEAT, values).rowcount == 1


class Record:
    """One name's entry. Load it, let the lease table work on `entry`, and save what it has changed."""

    __slots__ = ("_after", "_complete", "_execute", "_key", "_lapsed", "_places", "_row", "_seats", "_token", "entry")

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        """Load everything but the queue."""
        self._execute = connection.execute
        self._key = (namespace, name)
        self._row: tuple[Any, ...] | None = self._execute(_LEASE, self._key).fetchone()
        self._places: dict[str, tuple[Any, ...]] = {}
        self._seats: dict[int, tuple[Any, ...]] = {}
        self._lapsed: list[int] = []
        self._complete, self._after = True, -1
        self.entry = self._loaded()
        self._token = self.entry.token

    def _loaded(self) -> Entry:
        if self._row is None:
            return Entry(token=self._execute("SELECT base FROM meta").fetchone()[0])
        token, turn_since, closed_until, crowd, holder, since, expires, lasts, beat, delay, about = self._row
        entry = Entry(token, turn_since, closed_until)
        self._complete = not crowd & QUEUE
        if holder is not None:
            entry.seats.append(Seat(holder, token, "exclusive", since, expires, lasts, beat, delay, about))
        if crowd & SEATS:
            for seat in self._execute(_SEATS, self._key).fetchall():
                self._seats[seat[1]] = seat
                entry.seats.append(Seat(*seat))
        return entry

    @property
    def known(self) -> bool:
        """Whether the file has this name."""
        return self._row is not None

    @property
    def minted(self) -> bool:
        """Whether the lease table has minted a token."""
        return self.entry.token != self._token

    @property
    def crowd(self) -> int:
        """What this name is beyond a single row."""
        seats = SEATS if any(seat.mode != "exclusive" for seat in self.entry.seats) else 0
        return seats | (QUEUE if self.entry.queue or not self._complete else 0)

    def load_queue(self, depth: int, now: int, holder: str = "") -> None:
        """Load the first `depth` who still wait, and this holder's own place behind them.

        Others may stand between the two: they make no difference to the caller, and stay as they are.
        """
        queue = self.entry.queue
        while not self._complete and len(queue) < depth:
            chunk = self._execute(_PLACES, (*self._key, self._after, depth)).fetchall()
            for place in chunk:
                self._add(place, now)
            self._complete = len(chunk) < depth
            self._after = chunk[-1][0] if chunk else self._after
        if not self._complete and holder and holder not in self._places:
            for place in self._execute(_PLACE_OF, (holder, *self._key)).fetchall():
                self._add(place, now)

    def load_queue_for(self, ask: Ask, now: int, *, comes_back: bool) -> None:
        """Load as much of the queue as can make a difference to an answer; who comes back may be its head."""
        if comes_back:
            self.load_queue(2, now)
        queue = self.entry.queue
        if not queue or queue[0].holder != ask.holder:  # the head has nobody before it who could matter
            self.load_queue(depth_for(self.entry, ask, now), now, ask.holder)

    def _add(self, place: tuple[Any, ...], now: int) -> None:
        seq, holder, mode, most, since, until, address, about = place
        if until <= now:
            self._lapsed.append(seq)
        else:
            self._places[holder] = place
            self.entry.queue.append(Place(holder, mode, most, since, until, address, about))

    def save(self) -> None:
        """Write what has changed since it was loaded."""
        entry = self.entry
        if self._places or self._lapsed or entry.queue:
            self._save_queue()
        self._save_seats()
        lease = next((_columns(seat) for seat in entry.seats if seat.mode == "exclusive"), _NO_LEASE)
        row = (entry.token, entry.turn_since, entry.closed_until, self.crowd, *lease)
        if not self._is_saved(row) and (self.known or self.minted):
            self._execute(_PUT_LEASE, (*self._key, *row))

    def _is_saved(self, row: tuple[Any, ...]) -> bool:
        """Whether the file says the same. Without a holder it may say anything of the lease that was."""
        saved = self._row
        return row == saved or (row[4] is None and saved is not None and row[:5] == saved[:5])

    def _save_queue(self) -> None:
        waiting = {place.holder: place for place in self.entry.queue}
        gone = self._lapsed
        for holder, old in self._places.items():
            place = waiting.pop(holder, None)
            if place is None:
                gone.append(old[0])
            elif (place.until, place.address) != old[5:7]:
                self._execute(_MOVE_PLACE, (place.until, place.address, *self._key, old[0]))
        for seq in gone:
            self._execute("DELETE FROM waiter WHERE namespace = ? AND name = ? AND seq = ?", (*self._key, seq))
        for new in waiting.values():
            values = (new.holder, new.mode, new.limit, new.since, new.until, new.address, new.about)
            self._execute(_ADD_PLACE, (*self._key, *values))

    def _save_seats(self) -> None:
        gone = set(self._seats)
        for seat in self.entry.seats:
            if seat.mode == "exclusive":
                continue
            gone.discard(seat.token)
            holder, *rest = _columns(seat)
            values = (holder, seat.token, seat.mode, *rest)
            if values != self._seats.get(seat.token):
                self._execute(_PUT_SEAT, (*self._key, *values))
        for token in gone:
            self._execute("DELETE FROM seat WHERE namespace = ? AND name = ? AND token = ?", (*self._key, token))


def _columns(seat: Seat) -> tuple[Any, ...]:
    return seat.holder, seat.since, seat.expires, seat.lasts, seat.beat, seat.delay, seat.about


def depth_for(entry: Entry, ask: Ask, now: int) -> int:
    """How many at the head of the queue can make a difference to an answer.

    Whoever stands behind so many others that their turns would take longer than the longest silence is told that
    silence, however many they are. Their turns count from the latest end of a lease, or not before the end of one that
    is still held.
    """
    ended, blocked = [entry.turn_since], False
    for seat in entry.seats:
        if seat.expires <= now or (seat.token, seat.beat) == ask.suspect:
            ended.append(min(seat.expires, now))
        elif ask.mode == "exclusive":
            blocked = True
    passed = 0 if blocked else max(now - max(ended), 0)
    return (passed + LONGEST_SILENCE) // TURN + 2
