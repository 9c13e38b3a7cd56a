"""An SQL server against the lease table, step by step."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tests.engines.table_model import HOLDERS, NAMES, STEPS, TTLS, AgainstTable

from leasehold.core import table
from leasehold.core.engine import Want
from leasehold.core.table import Entry
from leasehold.core.worlds import run_blocking
from leasehold.engines.sql_lease import SqlLeaseEngine
from leasehold.wires.sql_table import KEEP_IDLE

BARRIER = "that was all"
CROWD = 36
SETTINGS = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class EngineAndTable(AgainstTable):
    """A subclass has connections that are shared by all runs: they take longer to open than a run takes."""

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
        self.entries = {}
        self.base = 0
        self.clock_was_set_back = self.was_crowded = False
        self.handed = 0

    def now(self) -> int:
        return int(self.clock.micros)

    def stamp(self) -> int:
        return self.now()

    def expect_wake(self, place: table.Place | None) -> None:
        assert self.heard() == ([place.holder] if place else [])

    def expect_to_be_passed_on(self, entry: Entry, place: table.Place | None) -> None:
        """The server may hand the name over only where the lease table may; it need not, on its long way."""
        heard = self.heard()
        if place is not None and heard and " " in heard[0]:
            token = table.hand_over(entry, place, self.now(), self.stamp())
            assert token is not None, "who has waited for longer has to come for the name"
            assert heard == [f"{place.holder} {token}"]
            self.handed += 1
            return
        assert heard == ([place.holder] if place else [])

    def renew_in_table(self, entry: Entry, holder: str, token: int, ttl: int) -> bool:
        """A renewal touches its own lease alone: what has run out beside it is put in order by whoever takes next."""
        after = copy.deepcopy(entry)
        kept = table.renew(after, holder, token, ttl, self.now())
        renewed = {seat.token: seat for seat in after.seats}
        if kept:
            entry.seats = [renewed[seat.token] if seat.holder == holder else seat for seat in entry.seats]
        return kept

    @rule(name=NAMES, holder=HOLDERS, other=HOLDERS)
    def a_lease_with_a_delay_is_lost(self, name: str, holder: str, other: str) -> None:
        """The name stays closed for a while, also for who finds neither a queue nor other holders there."""
        self.take_both(Want(name, holder, 0.05, "exclusive", 1, 3.0, f"{holder}@x"), None)
        self.time_passes(999_999)
        self.take_both(Want(name, other, 7.0, "exclusive", 1, 0.0, f"{other}@x"), None)

    @rule(name=NAMES, first=st.integers(0, 200), patience=st.sampled_from([30.0, 100.0]))
    def crowd(self, name: str, first: int, patience: float) -> None:
        """A queue that is longer than what the engine looks at."""
        self.was_crowded = True
        self.queue_up(name, range(first, first + CROWD), patience)

    @rule(name=NAMES, ttl=TTLS, delay=st.sampled_from([0.0, 3.0]), waited=st.sampled_from([1, 6_249, 6_250, 249_999]))
    def who_has_just_asked_is_next(self, name: str, ttl: float, delay: float, waited: int) -> None:
        """Somebody holds the name, others queue, and a moment later it is given back: by a stranger in vain."""
        for number in range(3):
            wanted = Want(name, f"p{number}", ttl, "exclusive", 1, delay, f"p{number}@x")
            self.take_both(wanted, 100.0)
        self.time_passes(waited)
        self.release(name, "a stranger")
        self.release(name, "p0")
        self.release(name, "p1")

    @rule(
        leases=st.lists(
            st.tuples(NAMES, HOLDERS, TTLS, st.booleans()), min_size=1, max_size=6, unique_by=lambda x: x[:2]
        )
    )
    def renew(self, leases: list[tuple[str, str, float, bool]]) -> None:
        self.renew_both(leases)

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
        self.clock.move(KEEP_IDLE)
        if self.clock_was_set_back:
            return  # then a name may be kept for longer than the lease table says
        self.forget_what_is_idle(KEEP_IDLE)
        for _ in range(2):  # what was crowded is put in order first
            run_blocking(self.engine._sweep(self.until()))
        assert self.sql("SELECT base FROM leasehold_meta") == [(self.base,)]
