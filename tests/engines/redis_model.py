"""The scripts against the lease table, step by step, on real servers: every answer, wake-up and the state must agree.

The scripts are the product's own text, but for one word: where they ask the server for the time, they read it from a
key that the test sets. So both sides see the same clock, which also jumps and goes back.
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.redis_server import RawClient, RedisServer

from leasehold.core import table
from leasehold.core.engine import Mode
from leasehold.core.table import Ask, Entry, Place, Refused, Released, Taken
from leasehold.engines import redis_scripts as scripts
from leasehold.engines.redis_keys import keys_of
from leasehold.engines.redis_scripts import Script

CLOCK = "the-clock-of-the-test"
START = 2_000_000_000_000_000
"""In the future, so that nothing expires on the server's own clock."""
RETENTION = 86_400_000
MODES = st.sampled_from(["exclusive", "exclusive", "shared", "shared", "permit"])
HOLDERS = st.integers(0, 3).map("h{}".format)
TTLS = st.sampled_from([1_000_000, 5_000_000, 30_000_000])
STEPS = st.sampled_from([1, 1, 1_000, 1_000_000, 1_000_000, 2_000_000, 5_000_000, 30_000_000, -500_000, -20_000_000])
# A floor in the future keeps a name off the shortcuts for good.
FLOORS = st.sampled_from([0] * 15 + [7, START + 30_000_000])
CONNECTIONS = st.integers(0, 1)
PATIENCES = st.sampled_from([None, None, 0, 1_500_000, 10_000_000, 600_000_000])


def with_test_clock(script: Script) -> str:
    """The script's text, with the time taken from a key; every other word is the product's."""
    assert script.text.count("redis.call('TIME')") == 1
    return script.text.replace("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK}', 0, 1)")


NAMES = ("TAKE", "RENEW", "RELEASE", "FORCE_RELEASE", "STATUS")
TEXTS = {name: with_test_clock(getattr(scripts, name)) for name in NAMES}


class ScriptsAndTable(RuleBasedStateMachine):
    """Drives both with the same requests. Some waiters live (their channel has a listener), and some are gone."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.ask_server = server.client()
        self.listener = server.client(resp3=True)
        self.digests = {name: self.ask_server("SCRIPT", "LOAD", text) for name, text in TEXTS.items()}

    @initialize()
    def begin(self) -> None:
        self.ask_server("FLUSHALL")
        self.entry = Entry()
        self.now = START
        self.keys = keys_of("", "n")
        self.listening: set[str] = set()
        self.told: list[str] = []
        self.set_clock()

    def teardown(self) -> None:
        self.ask_server.close()
        self.listener.close()

    def set_clock(self) -> None:
        self.ask_server.all(("DEL", CLOCK), ("RPUSH", CLOCK, self.now // 1_000_000, self.now % 1_000_000))

    def run_script(self, name: str, *arguments: Any) -> Any:
        return self.ask_server("EVALSHA", self.digests[name], len(self.keys), *self.keys, *map(str, arguments))

    def woken(self) -> list[str]:
        """Whom the server has woken since the last look; one who was handed the name, with its token."""
        self.listener.send("PING")
        messages = []
        while (reply := self.listener.receive()) != b"PONG":
            if reply[0] == b"message":
                messages.append(reply[2].decode())
        return messages

    def wake_in_table(self, place: Place | None) -> list[str]:
        """Do with the table's waiter what the server does: one that nobody listens for is dropped, then the next."""
        while place is not None:
            if place.address in self.listening:
                return [place.holder]
            self.entry.queue.remove(place)
            place = table._next_to_wake(self.entry, self.now)
        return []

    @rule(step=STEPS)
    def time_passes(self, step: int) -> None:
        self.now += step
        self.set_clock()

    @rule(channel=st.tuples(HOLDERS, CONNECTIONS).map("of-{0[0]}-{0[1]}".format))
    def process_starts_or_dies(self, channel: str) -> None:
        verb = "UNSUBSCRIBE" if channel in self.listening else "SUBSCRIBE"
        self.listening ^= {channel}
        self.listener(verb, channel)

    @rule(
        holder=HOLDERS,
        ttl=TTLS,
        mode=MODES,
        limit=st.integers(1, 3),
        delay=st.sampled_from([0, 0, 3_000_000]),
        patience=PATIENCES,
        connection=CONNECTIONS,
        suspects=st.sampled_from(["nobody", "nobody", "nobody", "the first", "an old beat"]),
        floor=FLOORS,
    )
    def take(
        self,
        holder: str,
        ttl: int,
        mode: Mode,
        limit: int,
        delay: int,
        patience: int | None,
        connection: int,
        *,
        suspects: str,
        floor: int,
    ) -> None:
        suspect = None
        if suspects != "nobody" and self.entry.seats:
            seat = min(self.entry.seats, key=lambda seat: (seat.expires, seat.token))
            suspect = (seat.token, seat.beat + (suspects == "an old beat"))
        about = f"about {holder}\n%{{x}}"
        address = f"of-{holder}-{connection}"
        ask = Ask(holder, ttl, mode, limit, delay, about, patience, address, suspect, floor)
        expected = table.take(self.entry, ask, self.now, self.now)
        terms = (holder, floor, mode, RETENTION + (ttl + delay + 999) // 1000, f"{ttl} {delay} {about}", limit)
        waits = ("" if patience is None else patience, *(suspect or ("", "")), address)
        short = patience is None and suspect is None
        reply = self.run_script("TAKE", *terms, *(() if short else waits))
        if isinstance(expected, Taken):
            assert reply == b"%d %b" % (expected.token, holder.encode())
            told = self.woken()
            assert told == self.wake_in_table(expected.wake)
            self.told += told
        else:
            assert reply == answer_of(expected)
            assert self.woken() == []

    @rule(holder=HOLDERS, ttl=TTLS, wrong=st.sampled_from([False, False, False, True]))
    def renew(self, holder: str, ttl: int, *, wrong: bool) -> None:
        seat = table._seat_of(self.entry, holder)
        token = (seat.token if seat else self.entry.token) + wrong
        expected = table.renew(self.entry, holder, token, ttl, self.now)
        assert self.run_script("RENEW", holder, token, ttl) == (b"%d" % token if expected else 0)
        assert self.woken() == []

    @rule(holder=HOLDERS)
    def release(self, holder: str) -> None:
        expected: Released = table.release(self.entry, holder, self.now)
        assert self.run_script("RELEASE", holder) == int(expected.held)
        woken, to_be_woken = self.woken(), self.wake_in_table(expected.wake)
        if " " in "".join(woken):
            # The server may hand over only where the table may; it need not, on its long way.
            token = table.hand_over(self.entry, self.entry.queue[0], self.now, self.now)
            assert token is not None
            to_be_woken = [f"{to_be_woken[0]} {token}"]
        assert woken == to_be_woken

    @rule()
    def force_release(self) -> None:
        token, wake = table.force_release(self.entry, self.now, self.now)
        assert self.run_script("FORCE_RELEASE", 0) == b"%d" % token
        assert self.woken() == self.wake_in_table(wake)

    @invariant()
    def the_states_agree(self) -> None:
        if hasattr(self, "entry"):
            assert stored(self.ask_server, self.keys) == significant(self.entry)


def answer_of(refused: Refused) -> list[Any]:
    seat = refused.incumbent
    if seat is None:
        return [refused.ask_again]
    return [refused.ask_again, b"%d" % seat.token, seat.beat, seat.lasts, seat.about.encode()]


def significant(entry: Entry) -> dict[str, Any]:
    """What of an entry must be on the server. When nobody holds or waits and the name is not closed, only the token."""
    seats = {
        seat.holder: (seat.token, seat.mode, seat.since, seat.expires, seat.lasts, seat.beat, seat.delay, seat.about)
        for seat in entry.seats
    }
    places = [
        (
            place.holder,
            place.mode,
            place.limit,
            place.since,
            place.until,
            place.floor,
            place.address,
            place.lasts,
            place.delay,
            place.about,
        )
        for place in entry.queue
    ]
    turn = entry.turn_since if seats or places or entry.closed_until else None
    return {"token": entry.token, "seats": seats, "places": places, "closed": entry.closed_until, "turn": turn}


def stored(ask: RawClient, keys: tuple[str, ...]) -> dict[str, Any]:
    """The same, read from the server's keys as they are."""
    head, seats, ends, queue, untils, places = keys
    of_head, of_seats, of_ends, of_queue, of_untils, of_places = ask.all(
        ("GET", head),
        ("HGETALL", seats),
        ("ZRANGE", ends, 0, -1, "WITHSCORES"),
        ("ZRANGE", queue, 0, -1),
        ("ZRANGE", untils, 0, -1, "WITHSCORES"),
        ("HGETALL", places),
    )
    text = (of_head or b"0").decode()
    match = re.fullmatch(r"(\d+)(?:;(\d+),(\d+),(\d+),(\w+))?(?: (\S+) (.*))?", text, re.DOTALL)
    assert match is not None, text
    token, turn, closed, sweep, kind, holder, seat = match.groups()
    found = {holder: read_seat(token, "exclusive", seat)} if holder else {}
    hashed = pairs(of_seats)
    for other, packed in hashed.items():
        its_token, _, rest = packed.partition(" ")
        found[other] = read_seat(its_token, kind, rest)
    ends_found = {member[16:]: int(score) for member, score in pairs(of_ends).items()}
    assert ends_found == {other: found[other][3] for other in hashed}
    order = [member.decode() for member in of_queue]
    until = pairs(of_untils)
    details = pairs(of_places)
    assert set(order) == set(until) == set(details)
    if order:
        assert 0 < int(sweep) <= min(map(int, until.values()))
    waiting = []
    for other in order:
        mode, limit, since, floor, address, lasts, delay, about = details[other].split(" ", 7)
        numbers = (int(limit), int(since), int(until[other]), int(floor))
        waiting.append((other, mode, *numbers, address, int(lasts), int(delay), about))
    since_turn = turn if turn is not None else (seat.split(" ")[1] if seat else "0")
    significant_turn = int(since_turn) if found or waiting or int(closed or 0) else None
    return {
        "token": int(token),
        "seats": found,
        "places": waiting,
        "closed": int(closed or 0),
        "turn": significant_turn,
    }


def read_seat(token: str, mode: str, text: str) -> tuple[Any, ...]:
    renewed, since, beat, lasts, delay, about = text.split(" ", 5)
    return (int(token), mode, int(since), int(renewed) + int(lasts), int(lasts), int(beat), int(delay), about)


def pairs(flat: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


class Directed(ScriptsAndTable):
    """The same comparison for sequences that chance seldom finds."""

    def ask(self, holder: str, **settings: Any) -> None:
        usual = {"ttl": 5_000_000, "mode": "exclusive", "limit": 1, "delay": 0, "patience": None}
        unusual = {"connection": 0, "suspects": "nobody", "floor": 0}
        self.take(holder=holder, **{**usual, **unusual, **settings})
        self.the_states_agree()

    def give_back(self, holder: str) -> None:
        self.release(holder=holder)
        self.the_states_agree()

    def listen(self, *holders: str) -> None:
        for holder in holders:
            self.process_starts_or_dies(channel=f"of-{holder}-0")
