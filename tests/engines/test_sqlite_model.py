"""The embedded engine against the lease table, step by step: every answer, token and wake-up must be the same."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tests.engines.sqlite_help import MovableClock, family, soon
from tests.engines.table_model import HOLDERS, NAMES, STEPS, TTLS, AgainstTable

from leasehold.core import table
from leasehold.core.engine import Busy, Grant, Mode, Suspect, Want
from leasehold.core.table import Entry, Refused
from leasehold.core.worlds import run_blocking
from leasehold.engines.sqlite import SqliteEngine
from leasehold.wires.local_wake import BlockingWaiting
from leasehold.wires.sqlite_upkeep import KEEP_IDLE, START, sweep


class EngineAndTable(AgainstTable):
    """Two engines share the file, as two processes would: neither can rely on what it remembers."""

    @initialize()
    def open(self) -> None:
        memory = Path("/dev/shm")  # where syncing costs nothing
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.clock = MovableClock()
        self.entries = {}
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

    def now(self) -> int:
        return self.clock.now()

    def stamp(self) -> int:
        return self.clock.stamp()

    def until(self) -> float:
        return soon(self.engines[0])  # it is no one's turn

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

    def take_both(self, wanted: Want, patience: float | None, suspect: Suspect | None = None) -> None:
        self.clock.wall += 1
        super().take_both(wanted, patience, suspect)

    def check_busy(self, answer: Grant | Busy, expected: Refused) -> None:
        super().check_busy(answer, expected)
        self.expect_wake(None)

    @rule(name=NAMES, many=st.integers(20, 60), first=st.integers(0, 200), patience=st.sampled_from([30.0, 100.0]))
    def crowd(self, name: str, many: int, first: int, patience: float) -> None:
        """A queue that is longer than what the engine looks at."""
        self.queue_up(name, range(first, first + many), patience)

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

    @rule(leases=st.lists(st.tuples(NAMES, HOLDERS, TTLS, st.booleans()), min_size=1, max_size=6))
    def renew(self, leases: list[tuple[str, str, float, bool]]) -> None:
        self.renew_both(leases)

    @rule(name=NAMES, off=st.sampled_from([-1, 0, 1]), ttl=TTLS)
    def renew_about_when_a_lease_ends(self, name: str, off: int, ttl: float) -> None:
        first = min(self.entry(name).seats, key=lambda seat: seat.expires, default=None)
        if first:
            self.clock.micros = max(self.clock.micros, first.expires + off)
            self.renew([(name, first.holder, ttl, True)])

    @rule(micros=STEPS)
    def time_passes(self, micros: int) -> None:
        self.clock.micros += micros
        self.clock.wall += micros

    @rule(micros=st.sampled_from([-(10**10), -1_000_000, 1_000_000, 10**9]))
    def wall_clock_is_set(self, micros: int) -> None:
        self.clock.wall += micros

    @rule()
    def a_day_goes_by(self) -> None:
        self.clock.micros += KEEP_IDLE
        self.forget_what_is_idle(KEEP_IDLE)
        for _ in range(2):  # what was crowded is put in order first
            position = run_blocking(self.engine._database.carry_out(self.until(), sweep, START))
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


TestEngineAndTable = EngineAndTable.TestCase
TestEngineAndTable.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
