"""An SQL server against the lease table, step by step: every answer, token and wake-up must be the same."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from leasehold.core import table
from leasehold.core.engine import Busy, Grant, Mode, Renewal, Suspect, Want
from leasehold.core.table import LATENESS, Ask, Entry, Refused, Taken
from leasehold.core.worlds import run_blocking
from leasehold.engines.sql_lease import SqlLeaseEngine
from leasehold.wires.sql_table import KEEP_IDLE

NAMES = st.sampled_from(["a", "b"])
HOLDERS = st.integers(0, 4).map("h{}".format)
TTLS = st.sampled_from([0.05, 1.0, 7.0, 30.0])
STEPS = st.sampled_from([1, 40_000, 999_999, 2_000_000, 5_000_000, 31_000_000, 60_000_000])
BARRIER = "that was all"
SETTINGS = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def soon(engine: SqlLeaseEngine[Any]) -> float:
    return engine.world.now() + 5.0


class EngineAndTable(RuleBasedStateMachine):
    """Drives both with the same requests, on a clock that stands still in between.

    A subclass has connections that are shared by all runs: they take longer to open than a run takes.
    """

    clock: Any
    """The server's clock, which stands still until it is moved: it has `micros` and `move`."""
    engine: SqlLeaseEngine[Any]

    def fresh_engine(self) -> SqlLeaseEngine[Any]:
        raise NotImplementedError

    def sql(self, text: str) -> list[tuple[object, ...]]:
        raise NotImplementedError

    def heard(self) -> list[str]:
        """Who was woken since the last time."""
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        for name in ("lease", "seat", "waiter"):
            self.sql(f"DELETE FROM leasehold_{name}")
        self.sql("UPDATE leasehold_meta SET base = 0")
        self.engine = self.fresh_engine()
        self.engine._takes_until_sweep = 10**9  # swept when the test says so
        self.entries: dict[str, Entry] = {}
        self.base = 0
        self.clock_was_set_back = self.was_crowded = False
        self.handed = 0

    def entry(self, name: str) -> Entry:
        return self.entries.setdefault(name, Entry(token=self.base))

    def expect_wake(self, place: table.Place | None) -> None:
        assert self.heard() == ([place.holder] if place else [])

    def expect_to_be_passed_on(self, entry: Entry, place: table.Place | None) -> None:
        """The server may hand the name over only where the lease table may; it need not, on its long way."""
        heard = self.heard()
        if place is not None and heard and " " in heard[0]:
            token = table.hand_over(entry, place, self.clock.micros, self.clock.micros)
            assert token is not None, "who has waited for longer has to come for the name"
            assert heard == [f"{place.holder} {token}"]
            self.handed += 1
            return
        assert heard == ([place.holder] if place else [])

    @rule(
        name=NAMES,
        holder=HOLDERS,
        mode=st.sampled_from(["exclusive", "exclusive", "shared", "permit"]),
        ttl=TTLS,
        delay=st.sampled_from([0.0, 0.0, 3.0]),
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
        entry = self.entry(name)
        first = min(entry.seats, key=lambda seat: seat.token, default=None)
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
        expected = table.take(self.entry(wanted.name), ask, self.clock.micros, self.clock.micros)
        answer = run_blocking(self.engine.take(wanted, until=soon(self.engine), patience=patience, suspect=suspect))
        if isinstance(expected, Taken):
            assert answer == Grant(expected.token)
            self.expect_wake(expected.wake)
        else:
            self.check_busy(answer, expected)

    @rule(name=NAMES, holder=HOLDERS, other=HOLDERS)
    def a_lease_with_a_delay_is_lost(self, name: str, holder: str, other: str) -> None:
        """The name stays closed for a while, also for who finds neither a queue nor other holders there."""
        self.take_both(Want(name, holder, 0.05, "exclusive", 1, 3.0, f"{holder}@x"), None)
        self.time_passes(999_999)
        self.take_both(Want(name, other, 7.0, "exclusive", 1, 0.0, f"{other}@x"), None)

    def check_busy(self, answer: Grant | Busy, expected: Refused) -> None:
        assert isinstance(answer, Busy)
        assert answer.ask_again == expected.ask_again / 1e6
        seat = expected.incumbent
        assert answer.incumbent == (seat and (seat.token, seat.beat, seat.lasts / 1e6, seat.about))

    @rule(name=NAMES, first=st.integers(0, 200), patience=st.sampled_from([30.0, 100.0]))
    def crowd(self, name: str, first: int, patience: float) -> None:
        """A queue that is longer than what the engine looks at."""
        self.was_crowded = True
        for number in range(first, first + 36):
            mode: Mode = "exclusive" if number % 5 else "shared"
            self.take_both(Want(name, f"w{number}", 5.0, mode, 1, 0.0, "w@x"), patience)

    @rule(name=NAMES, number=st.integers(0, 240))
    def leave_crowd(self, name: str, number: int) -> None:
        self.release(name, f"w{number}")

    @rule(name=NAMES, holder=HOLDERS)
    def release(self, name: str, holder: str) -> None:
        expected = table.release(self.entry(name), holder, self.clock.micros)
        assert run_blocking(self.engine.release(name, holder, until=soon(self.engine))) == expected.held
        self.expect_to_be_passed_on(self.entry(name), expected.wake)

    @rule(name=NAMES, ttl=TTLS, delay=st.sampled_from([0.0, 3.0]), waited=st.sampled_from([1, 6_249, 6_250, 249_999]))
    def who_has_just_asked_is_next(self, name: str, ttl: float, delay: float, waited: int) -> None:
        """Somebody holds the name, others queue, and a moment later it is given back."""
        for number in range(3):
            wanted = Want(name, f"p{number}", ttl, "exclusive", 1, delay, f"p{number}@x")
            self.take_both(wanted, 100.0)
        self.time_passes(waited)
        self.release(name, "p0")
        self.release(name, "p1")

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

    @rule(
        leases=st.lists(
            st.tuples(NAMES, HOLDERS, TTLS, st.booleans()), min_size=1, max_size=6, unique_by=lambda x: x[:2]
        )
    )
    def renew(self, leases: list[tuple[str, str, float, bool]]) -> None:
        renewals, expected = [], []
        for name, holder, ttl, right in leases:
            entry = self.entry(name)
            held = {seat.holder: seat.token for seat in entry.seats}
            token = held.get(holder, 1) if right else 1
            renewals.append(Renewal(name, holder, token, ttl))
            expected.append(self.renew_in_table(entry, holder, token, int(ttl * 1e6)))
        assert run_blocking(self.engine.renew(renewals, until=soon(self.engine))) == expected

    def renew_in_table(self, entry: Entry, holder: str, token: int, ttl: int) -> bool:
        """A renewal touches its own lease alone: what has run out beside it is put in order by whoever takes next."""
        after = copy.deepcopy(entry)
        kept = table.renew(after, holder, token, ttl, self.clock.micros)
        renewed = {seat.token: seat for seat in after.seats}
        if kept:
            entry.seats = [renewed[seat.token] if seat.holder == holder else seat for seat in entry.seats]
        return kept

    @rule(name=NAMES)
    def force_release(self, name: str) -> None:
        now = self.clock.micros
        token, wake = table.force_release(self.entry(name), now, now)
        assert run_blocking(self.engine.force_release(name, until=soon(self.engine))) == token
        self.expect_wake(wake)

    @rule(micros=STEPS)
    def time_passes(self, micros: int) -> None:
        self.clock.move(micros)

    # By less than the day after which names are forgotten, however often: what ran out a day ago must not come back.
    @rule(micros=st.sampled_from([-(10**9), -1_000_000, -1]))
    def the_clock_is_set_back(self, micros: int) -> None:
        if self.was_crowded:
            return  # who ran out of time where the engine does not look would have some again
        self.clock_was_set_back = True
        self.clock.move(micros)

    @rule()
    def a_day_goes_by(self) -> None:
        """Names that nobody uses are forgotten, and their tokens are not."""
        self.clock.move(KEEP_IDLE)
        if self.clock_was_set_back:
            return  # then a name may be kept for longer than the lease table says
        now = self.clock.micros
        for name, entry in list(self.entries.items()):
            table.renew(entry, "", 0, 0, now)
            if entry.idle and entry.turn_since <= now - KEEP_IDLE and entry.closed_until <= now:
                self.base = max(self.base, entry.token)
                del self.entries[name]
        for _ in range(2):  # what was crowded is put in order first
            run_blocking(self.engine._sweep(soon(self.engine)))
        assert self.sql("SELECT base FROM leasehold_meta") == [(self.base,)]

    @invariant()
    def same_status(self) -> None:
        for name, entry in getattr(self, "entries", {}).items():
            status = run_blocking(self.engine.status(name, until=soon(self.engine)))
            now, expected = self.clock.micros, copy.deepcopy(entry)
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
            table.renew(lapsed, "", 0, 0, self.clock.micros)
            if not lapsed.idle:
                expected.append(name)
        if expected:
            assert run_blocking(self.engine.names(after=None, limit=9, until=soon(self.engine))) == expected
