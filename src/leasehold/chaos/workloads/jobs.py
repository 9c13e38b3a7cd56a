"""Jobs: a schedule that fires on every worker, and one run for each tick.

Plain: under the lock, look whether the tick was run; if not, run it. Fenced: a once-only job, whose result is stored in
the transaction of its effect.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Protocol

from leasehold.chaos.hand import Change, Hand
from leasehold.chaos.resource import Cells, Request, Resource
from leasehold.chaos.workloads.payments import effects
from leasehold.chaos.workloads.workload import Final, Simple
from leasehold.errors import StaleToken
from leasehold.patterns.idempotency import SqlKeys
from leasehold.patterns.jobs import Jobs

PERIOD = 0.5
"""Seconds between two ticks."""
MOST_ATTEMPTS = 20
WINDOW = 3
"""A tick whose run failed is tried again for so many TTLs, on the plain side."""


class _Run(Protocol):
    """One run of a job, as far as it is used here."""

    @property
    def key(self) -> str: ...
    @property
    def token(self) -> int: ...
    def complete(self, result: object, *, on: Any) -> None: ...


class OnceOnlyJobs(Simple):
    """Do the work of this tick, unless somebody did."""

    name: ClassVar[str] = "jobs"
    summary: ClassVar[str] = "run a scheduled job on every worker: once for each tick"
    kind: ClassVar[str] = "job"
    only_leasehold: ClassVar[bool] = True

    def prepare(self, resource: Resource) -> None:
        """Make the table of runs."""
        store = SqlKeys(resource.path)
        store.create()
        store.close()

    def lap(self, hand: Hand) -> None:
        """Ask for the job on both sides."""
        self._under_the_lock(hand)
        self._once_only(hand)
        hand.rest(longest=PERIOD / 2)

    def _under_the_lock(self, hand: Hand) -> None:
        latest = int(time.time() / PERIOD)
        with hand.holding(self.name) as grip:
            tick = hand.resource.look("plain", lambda cells: _oldest_due(cells, latest, hand.terms.ttl))
            if grip is None or tick is None:
                return
            hand.work()
            effect = hand.unique()
            with hand.gap(grip) as believed:
                if believed:
                    change = Change(self.kind, tick, effect, lambda cells: cells.put(tick, effect))
                    hand.write(grip, "plain", change)

    def _once_only(self, hand: Hand) -> None:
        store = SqlKeys(hand.resource.path)
        try:
            jobs = Jobs(store, at_most_for=hand.terms.ttl, catch_up="all", attempts=MOST_ATTEMPTS)
            jobs.once_per(PERIOD, name="chaos")(lambda run: self._run(hand, run))()
        except StaleToken:
            return  # it was taken for crashed, and another one has done it
        finally:
            store.close()

    def _run(self, hand: Hand, run: _Run) -> Any:
        hand.work()
        effect = hand.unique()
        request = Request("fenced", self.kind, run.key, hand.worker, hand.next_op(), value=effect)

        def work(cells: Cells) -> None:
            cells.put(run.key, effect)
            run.complete(effect, on=cells.connection)

        with hand.holds(), hand.gap():
            done = hand.carry_out(request, lambda: hand.resource.write_checked_by(request, work))
        if not done:
            raise StaleToken(run.key, token=run.token, seen=run.token + 1)
        return effect

    def final(self, resource: Resource) -> list[Final]:
        """Each time that a tick was run: which, and by what."""
        return effects(resource, self.kind, self.name)


def _oldest_due(cells: Cells, latest: int, ttl: float) -> str | None:
    """The first tick of the latest ones that was not run."""
    ticks = [f"tick-{latest - back}" for back in reversed(range(1 + int(WINDOW * ttl / PERIOD)))]
    return next((tick for tick in ticks if cells.get(tick) is None), None)
