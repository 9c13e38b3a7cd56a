"""The embedded engine against the lease table, step by step: every answer, token and wake-up must be the same."""

from __future__ import annotations

import copy
import shutil
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.engines.sqlite_help import MovableClock, family, soon

from leasehold.core import table
from leasehold.core.engine import Busy, Grant, Mode, Renewal, Suspect, Want
from leasehold.core.table import LATENESS, Ask, Entry, Refused, Taken
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine
from leasehold.wires.local_wake import BlockingWaiting
from leasehold.wires.sqlite_upkeep import KEEP_IDLE, START, sweep

NAMES = st.sampled_from(["a", "b"])
HOLDERS = st.integers(0, 4).map("h{}".format)
TTLS = st.sampled_from([0.05, 1.0, 7.0, 30.0])
STEPS = st.sampled_from([1, 40_000, 999_999, 2_000_000, 5_000_000, 31_000_000, 60_000_000])


class EngineAndTable(RuleBasedStateMachine):
    """Drives both with the same requests, on a clock that stands still in between.

    Two engines share the file, as two processes would: neither can rely on what it remembers.
    """

    @initialize()
    def open(self) -> None:
        memory = Path("/dev/shm")  # where syncing costs nothing
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.clock = MovableClock()
        self.entries: dict[str, Entry] = {}
        self.base = 0
        self.turn = 1
        self.reopen()

    def reopen(self) -> None:
        self.engines = []
        for _ in range(2):
            engine = family(self.folder / "leases.db", self.clock).blocking()
            assert isinstance(engine, SqliteEngine)
            engine._takes_until_sweep = 10**9  # swept when the test says so
            run_blocking(engine.status("a", until=soon(engine)))  # opens the file
            self.engines.append(engine)

    @property
    def engine(self) -> SqliteEngine:
        """Each in turn, but not in step with the rules."""
        self.turn = self.turn * 5 % 23
        sure, new = self.engines  # what an engine remembers may save it work, and must not matter
        sure._known.update("ab")
        sure._queued.update(f"h{number}" for number in range(5))
        for memory in (new._crowded, new._known, new._queued):
            memory.clear()
        return self.engines[self.turn % 2]

    def close(self) -> None:
        for engine in self.engines:
            run_blocking(engine.close())

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.folder)

    def entry(self, name: str) -> Entry:
        return self.entries.setdefault(name, Entry(token=self.base))

    def expect_wake(self, place: table.Place | None) -> None:
        woken: list[str] = []
        for engine in self.engines:
            assert isinstance(engine._waiting, BlockingWaiting)
            mailbox = getattr(engine._waiting._local, "mailbox", None)
            woken += mailbox.read()[0] if mailbox else []
        assert woken == ([place.holder] if place else [])

    def file(self, query: str) -> tuple[int, ...]:
        connection = sqlite3.connect(self.folder / "leases.db")
        try:
            row: tuple[int, ...] = connection.execute(query).fetchone()
            return row
        finally:
            connection.close()

    @rule(
        name=NAMES,
        holder=HOLDERS,
        mode=st.sampled_from(["exclusive", "exclusive", "shared", "permit"]),
        ttl=TTLS,
        delay=st.sampled_from([0.0, 0.0, 3.0, 100_000.0]),
        patience=st.sampled_from([None, 0.5, 100.0]),
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
        wanted = Want(name, holder, ttl, mode, limit, delay, f"{holder}@x")
        self.take_both(wanted, patience, suspect)

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
        self.clock.wall += 1
        expected = table.take(self.entry(wanted.name), ask, self.clock.now(), self.clock.stamp())
        until = soon(self.engines[0])
        answer = run_blocking(self.engine.take(wanted, until=until, patience=patience, suspect=suspect))
        if isinstance(expected, Taken):
            assert answer == Grant(expected.token)
            self.expect_wake(expected.wake)
        else:
            self.check_busy(answer, expected)
            self.expect_wake(None)

    def check_busy(self, answer: Grant | Busy, expected: Refused) -> None:
        assert isinstance(answer, Busy)
        assert answer.ask_again == expected.ask_again / 1e6
        seat = expected.incumbent
        assert answer.incumbent == (seat and (seat.token, seat.beat, seat.lasts / 1e6, seat.about))

    @rule(name=NAMES, many=st.integers(20, 60), first=st.integers(0, 200), patience=st.sampled_from([30.0, 100.0]))
    def crowd(self, name: str, many: int, first: int, patience: float) -> None:
        """A queue that is longer than what the engine looks at."""
        for number in range(first, first + many):
            mode: Mode = "exclusive" if number % 5 else "shared"
            self.take_both(Want(name, f"w{number}", 5.0, mode, 1, 0.0, "w@x"), patience)

    @rule(name=NAMES, number=st.integers(0, 260))
    def leave_crowd(self, name: str, number: int) -> None:
        self.release(name, f"w{number}")

    @rule(
        name=NAMES,
        holder=HOLDERS,
        mode=st.sampled_from(["exclusive", "shared"]),
        off=st.sampled_from([-1, 0, 1, 1_000_000]),
        delay=st.sampled_from([0.0, 3.0]),
    )
    def take_about_when_a_lease_ends(self, name: str, holder: str, mode: Mode, off: int, delay: float) -> None:
        self.take_both(Want(name, "early", 1.0, "exclusive", 1, delay, "early@x"), None)
        ends = min((seat.expires for seat in self.entry(name).seats), default=0)
        self.clock.micros = max(self.clock.micros, ends + off)
        self.take_both(Want(name, holder, 1.0, mode, 1, delay, "late@x"), None)

    @rule(name=NAMES, off=st.sampled_from([-1, 0]))
    def take_about_when_the_name_opens(self, name: str, off: int) -> None:
        self.clock.micros = max(self.clock.micros, self.entry(name).closed_until + off)
        self.take_both(Want(name, "h0", 1.0), None)

    @rule(name=NAMES, holder=HOLDERS)
    def release(self, name: str, holder: str) -> None:
        expected = table.release(self.entry(name), holder, self.clock.now())
        assert run_blocking(self.engine.release(name, holder, until=soon(self.engines[0]))) == expected.held
        self.expect_wake(expected.wake)

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

    @rule(leases=st.lists(st.tuples(NAMES, HOLDERS, TTLS, st.booleans()), min_size=1, max_size=6))
    def renew(self, leases: list[tuple[str, str, float, bool]]) -> None:
        now, renewals, expected = self.clock.now(), [], []
        for name, holder, ttl, right in leases:
            entry = self.entry(name)
            held = {seat.holder: seat.token for seat in entry.seats}
            token = held.get(holder, 1) if right else 1
            renewals.append(Renewal(name, holder, token, ttl))
            expected.append(table.renew(entry, holder, token, int(ttl * 1e6), now))
        assert run_blocking(self.engine.renew(renewals, until=soon(self.engines[0]))) == expected

    @rule(name=NAMES, off=st.sampled_from([-1, 0, 1]), ttl=TTLS)
    def renew_about_when_a_lease_ends(self, name: str, off: int, ttl: float) -> None:
        first = min(self.entry(name).seats, key=lambda seat: seat.expires, default=None)
        if first:
            self.clock.micros = max(self.clock.micros, first.expires + off)
            self.renew([(name, first.holder, ttl, True)])

    @rule(name=NAMES)
    def force_release(self, name: str) -> None:
        token, wake = table.force_release(self.entry(name), self.clock.now(), self.clock.stamp())
        assert run_blocking(self.engine.force_release(name, until=soon(self.engines[0]))) == token
        self.expect_wake(wake)

    @rule(micros=STEPS)
    def time_passes(self, micros: int) -> None:
        self.clock.micros += micros
        self.clock.wall += micros

    @rule(micros=st.sampled_from([-(10**10), -1_000_000, 1_000_000, 10**9]))
    def wall_clock_is_set(self, micros: int) -> None:
        self.clock.wall += micros

    @rule()
    def a_day_goes_by(self) -> None:
        """Names that nobody uses are forgotten, and their tokens are not."""
        self.clock.micros += KEEP_IDLE
        now = self.clock.now()
        for name, entry in list(self.entries.items()):
            table.renew(entry, "", 0, 0, now)
            if entry.idle and entry.turn_since <= now - KEEP_IDLE and entry.closed_until <= now:
                self.base = max(self.base, entry.token)
                del self.entries[name]
        for _ in range(2):  # what was crowded is put in order first
            position = run_blocking(self.engine._database.carry_out(soon(self.engines[0]), sweep, START))
            assert position == START
        assert self.file("SELECT base FROM meta") == (self.base,)

    @rule()
    def reboot(self) -> None:
        """Whoever held or waited is gone. Tokens go on above all that was handed out; lock-delays start anew."""
        self.close()
        highest = max((entry.token for entry in self.entries.values()), default=0)
        [self.base] = self.file("SELECT ceiling FROM meta")
        assert self.base > highest
        self.clock.boot, self.clock.micros = self.clock.boot + "'", 5_000_000
        now = self.clock.now()
        self.entries = {
            name: Entry(self.base, now, closed_until=now + left)
            for name, entry in self.entries.items()
            if (left := max([entry.closed_until - entry.turn_since, *(seat.delay for seat in entry.seats)])) > 0
        }
        self.reopen()

    @invariant()
    def same_status(self) -> None:
        for name, entry in getattr(self, "entries", {}).items():
            status = run_blocking(self.engine.status(name, until=soon(self.engines[0])))
            now, expected = self.clock.now(), copy.deepcopy(entry)
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
            table.renew(lapsed, "", 0, 0, self.clock.now())
            if not lapsed.idle:
                expected.append(name)
        if expected:
            assert run_blocking(self.engine.names(after=None, limit=9, until=soon(self.engines[0]))) == expected


TestEngineAndTable = EngineAndTable.TestCase
TestEngineAndTable.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
