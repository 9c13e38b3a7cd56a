"""An engine that keeps leases in tables against the lease table itself: every answer, token and wake-up is the same."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from leasehold.core import table
from leasehold.core.engine import Busy, Grant, Mode, Renewal, Suspect, Want
from leasehold.core.table import LATENESS, Ask, Entry, Refused, Taken
from leasehold.core.worlds import run_blocking

NAMES = st.sampled_from(["a", "b"])
HOLDERS = st.integers(0, 4).map("h{}".format)
TTLS = st.sampled_from([0.05, 1.0, 7.0, 30.0])
STEPS = st.sampled_from([1, 40_000, 999_999, 2_000_000, 5_000_000, 31_000_000, 60_000_000])


class AgainstTable(RuleBasedStateMachine):
    """Drives both with the same requests, on a clock that stands still in between."""

    engine: Any
    entries: dict[str, Entry]
    base: int

    # What each engine has of its own

    def now(self) -> int:
        """The time by which leases run out, in microseconds."""
        raise NotImplementedError

    def stamp(self) -> int:
        """The time that tokens are made of."""
        raise NotImplementedError

    def expect_wake(self, place: table.Place | None) -> None:
        """Who was woken since the last time is the one in this place, or nobody."""
        raise NotImplementedError

    def expect_to_be_passed_on(self, entry: Entry, place: table.Place | None) -> None:
        """The same for a name that was given back: some engines hand it over."""
        self.expect_wake(place)

    def renew_in_table(self, entry: Entry, holder: str, token: int, ttl: int) -> bool:
        return table.renew(entry, holder, token, ttl, self.now())

    # What all do

    def entry(self, name: str) -> Entry:
        return self.entries.setdefault(name, Entry(token=self.base))

    def until(self) -> float:
        """When an answer should be there."""
        return float(self.engine.world.now() + 5.0)

    @rule(
        name=NAMES,
        holder=HOLDERS,
        mode=st.sampled_from(["exclusive", "exclusive", "shared", "permit"]),
        ttl=TTLS,
        delay=st.sampled_from([0.0, 0.0, 3.0, 100_000.0]),
        patience=st.sampled_from([None, 0.7, 100.0]),
        limit=st.integers(1, 3),
        suspicious=st.booleans(),
    )
    def take(
        self,
        name: str,
        holder: str,
        mode: Mode,
        ttl: float,
        delay: float,
        patience: float | None,
        limit: int,
        suspicious: bool,
    ) -> None:
        first = min(self.entry(name).seats, key=lambda seat: seat.token, default=None)
        suspect = Suspect(first.token, first.beat) if first and suspicious else None
        self.take_both(Want(name, holder, ttl, mode, limit, delay, f"{holder}@x"), patience, suspect)

    def take_both(self, wanted: Want, patience: float | None, suspect: Suspect | None = None) -> None:
        ask = Ask(
            wanted.holder,
            int(wanted.ttl * 1e6),
            wanted.mode,
            wanted.limit,
            int(wanted.delay * 1e6),
            wanted.about,
            None if patience is None else int(patience * 1e6),
            "somewhere",
            suspect,
        )
        expected = table.take(self.entry(wanted.name), ask, self.now(), self.stamp())
        answer = run_blocking(self.engine.take(wanted, until=self.until(), patience=patience, suspect=suspect))
        if isinstance(expected, Taken):
            assert answer == Grant(expected.token)
            self.expect_wake(expected.wake)
        else:
            self.check_busy(answer, expected)

    def check_busy(self, answer: Grant | Busy, expected: Refused) -> None:
        assert isinstance(answer, Busy)
        assert answer.ask_again == expected.ask_again / 1e6
        seat = expected.incumbent
        assert answer.incumbent == (seat and (seat.token, seat.beat, seat.lasts / 1e6, seat.about))

    def queue_up(self, name: str, numbers: range, patience: float) -> None:
        """Let so many ask, most of them for themselves alone."""
        for number in numbers:
            mode: Mode = "exclusive" if number % 5 else "shared"
            self.take_both(Want(name, f"w{number}", 5.0, mode, 1, 0.0, "w@x"), patience)

    @rule(name=NAMES, number=st.integers(0, 260))
    def leave_crowd(self, name: str, number: int) -> None:
        self.release(name, f"w{number}")

    @rule(name=NAMES, holder=HOLDERS)
    def release(self, name: str, holder: str) -> None:
        expected = table.release(self.entry(name), holder, self.now())
        assert run_blocking(self.engine.release(name, holder, until=self.until())) == expected.held
        self.expect_to_be_passed_on(self.entry(name), expected.wake)

    @rule(name=NAMES)
    def serve_head(self, name: str) -> None:
        """The head of the queue asks, as it does when it was woken."""
        queue = self.entry(name).queue
        if queue:
            head = queue[0]
            self.take_both(Want(name, head.holder, 5.0, head.mode, head.limit, 0.0, head.about), 10.0)

    @rule(name=NAMES, which=st.integers(0, 5))
    def release_a_holder(self, name: str, which: int) -> None:
        seats = self.entry(name).seats
        if seats:
            self.release(name, seats[which % len(seats)].holder)

    def renew_both(self, leases: list[tuple[str, str, float, bool]]) -> None:
        """Renew leases by name, holder and TTL, with the right token or with another one."""
        renewals, expected = [], []
        for name, holder, ttl, right in leases:
            entry = self.entry(name)
            held = {seat.holder: seat.token for seat in entry.seats}
            token = held.get(holder, 1) if right else 1
            renewals.append(Renewal(name, holder, token, ttl))
            expected.append(self.renew_in_table(entry, holder, token, int(ttl * 1e6)))
        assert run_blocking(self.engine.renew(renewals, until=self.until())) == expected

    @rule(name=NAMES)
    def force_release(self, name: str) -> None:
        token, wake = table.force_release(self.entry(name), self.now(), self.stamp())
        assert run_blocking(self.engine.force_release(name, until=self.until())) == token
        self.expect_wake(wake)

    def forget_what_is_idle(self, keep: int) -> None:
        """Names that nobody has used for so long are forgotten, and their tokens are not."""
        now = self.now()
        for name, entry in list(self.entries.items()):
            table.renew(entry, "", 0, 0, now)
            if entry.idle and entry.turn_since <= now - keep and entry.closed_until <= now:
                self.base = max(self.base, entry.token)
                del self.entries[name]

    @invariant()
    def same_status(self) -> None:
        for name, entry in getattr(self, "entries", {}).items():
            status = run_blocking(self.engine.status(name, until=self.until()))
            now, expected = self.now(), copy.deepcopy(entry)
            table.renew(expected, "", 0, 0, now)
            if status is None:
                assert expected.idle
                assert expected.token == self.base
                continue
            assert [(h.token, h.mode, h.expires_in) for h in status.holders] == [
                (seat.token, seat.mode, (seat.expires - now) / 1e6) for seat in expected.seats
            ]
            assert [(w.mode, w.about, w.patience_left) for w in status.waiters] == [
                (place.mode, place.about, max(place.until - LATENESS - now, 0) / 1e6) for place in expected.queue
            ]
            assert status.token == expected.token
            assert status.closed_for == max(expected.closed_until - now, 0) / 1e6

    @invariant()
    def same_names(self) -> None:
        expected = []
        for name, entry in sorted(getattr(self, "entries", {}).items()):
            lapsed = copy.deepcopy(entry)
            table.renew(lapsed, "", 0, 0, self.now())
            if not lapsed.idle:
                expected.append(name)
        if expected:
            assert run_blocking(self.engine.names(after=None, limit=9, until=self.until())) == expected
