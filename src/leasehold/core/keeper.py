"""The keeper: renews every lease of a client, and tells each holder once when its lease is lost.

Three loops that do not wait for each other. `watch_deadlines` latches and tells; it never touches the engine, so a hung
renewal cannot delay it. `renew` talks to the engine, in batches. `clean_up` gives back what was abandoned: a lease lost
by its deadline, an interrupted attempt, a lease whose owner was garbage-collected.

Leases sit in a plain dict that is scanned, not in a heap: taking and releasing stay cheap and leave nothing behind,
and a scan of ten thousand takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leasehold.core.engine import Engine, Want
from leasehold.core.held import KEEPER_DIED, NEVER, REFUSED, Held
from leasehold.core.worlds import World
from leasehold.errors import LeaseholdError

TICK = 0.5
"""A keeper with nothing due looks again after this long, so that a new lease seldom has to wake it."""
IDLE_TICKS_UNTIL_PARKED = 20
LOOKING = NEVER
"""While a loop looks around, it may have passed by where a new lease is put: then it has to be rung as well."""
LARGEST_BATCH = 500
SHORTEST_REQUEST = 0.05
LONGEST_REQUEST = 5.0


class Alarm(Protocol):
    """How a loop of the keeper sleeps. `ring` may be called from any thread, and counts when nobody sleeps yet."""

    async def sleep(self, seconds: float | None) -> None:
        """Sleep for so long, or until rung; None: only until rung."""
        ...

    def ring(self) -> None:
        """Wake the sleeper."""
        ...


class Notes(Protocol):
    """Whom the keeper tells of its daily work, for metrics. Must be quick, and must not raise."""

    def renewed(self, held: Held) -> None:
        """The engine has confirmed a renewal."""
        ...

    def not_renewed(self, held: Held, error: LeaseholdError | None) -> None:
        """The engine has not confirmed a renewal; it will be tried again."""
        ...

    def dropped(self, held: Held) -> None:
        """A lease that nobody could reach any more is given back."""
        ...


class Chore:
    """Something to give back. `done` is called when the engine has answered, or when it no longer matters."""

    __slots__ = ("done", "due", "looked", "since", "want")

    def __init__(self, want: Want, since: float, done: Callable[[], object]) -> None:
        """It was to be given back from then on."""
        self.want, self.since, self.done = want, since, done
        self.looked, self.due = False, 0.0


class Keeper:
    """Keeps the leases of one client."""

    def __init__(
        self,
        world: World,
        alarms: Callable[[], Alarm],
        tell: Callable[[Held], object],
        notes: Notes | None = None,
    ) -> None:
        """`tell` is called once for each lost lease, from `watch_deadlines`."""
        self._world = world
        self._tell, self._notes = tell, notes
        self._deadline_alarm, self._renew_alarm, self._chore_alarm = alarms(), alarms(), alarms()
        self._leases: dict[str, Held] = {}
        self._chores: list[Chore] = []
        self._looks_at_deadlines_at = self._looks_at_renewals_at = LOOKING
        self.closing = False

    def __len__(self) -> int:
        """How many leases are kept."""
        return len(self._leases)

    @property
    def leases(self) -> list[Held]:
        """The leases kept now."""
        return list(self._leases.values())

    def keep(self, held: Held, *, renewed: bool) -> None:
        """Watch over a lease, and renew it if asked to. Wakes the keeper only if it would look too late."""
        held.renew_at = held.acquired_at + held.ttl / 3 if renewed else NEVER
        self._leases[held.want.holder] = held
        if held.valid_until < self._looks_at_deadlines_at:
            self._deadline_alarm.ring()
        if held.renew_at < self._looks_at_renewals_at:
            self._renew_alarm.ring()

    def forget(self, held: Held) -> bool:
        """Stop keeping a lease; False when the keeper had let go of it already."""
        return self._leases.pop(held.want.holder, None) is not None

    def revoked(self, holder: str) -> None:
        """The engine has heard that a lease is over: its holder is told at once."""
        held = self._leases.get(holder)
        if held is not None:
            held.end(REFUSED)
            self._deadline_alarm.ring()

    def abandon(self, want: Want, done: Callable[[], object] = lambda: None) -> None:
        """Give back whatever the engine holds for this attempt, in the background."""
        self._chores.append(Chore(want, self._world.now(), done))
        self._chore_alarm.ring()

    def close(self) -> None:
        """Renew nothing any more, and end once nothing is left to give back, or to be told of."""
        self.closing = True
        for alarm in (self._deadline_alarm, self._renew_alarm, self._chore_alarm):
            alarm.ring()

    def died(self) -> None:
        """A loop ended unexpectedly: nobody renews any more, so every holder is told at once."""
        for held in self.leases:
            held.end(KEEPER_DIED)
            if self.forget(held):
                self._tell(held)

    async def watch_deadlines(self) -> None:
        """Tell each holder whose lease is lost, within the resolution of the clock; also after closing."""
        idle = 0
        while self._leases or not self.closing:
            self._looks_at_deadlines_at = LOOKING
            earliest, now = None, self._world.now()
            for held in self.leases:
                if held.owner is not None and held.owner() is None:
                    self._drop(held)
                if held.ended is not None or now >= held.valid_until:
                    if held.lost:
                        self._lose(held)
                elif earliest is None or held.valid_until < earliest:
                    earliest = held.valid_until
            idle = 0 if self._leases else idle + 1
            seconds = self._until_next_look(earliest, idle)
            self._looks_at_deadlines_at = NEVER if seconds is None else self._world.now() + seconds
            await self._deadline_alarm.sleep(seconds)

    def _lose(self, held: Held) -> None:
        if self.forget(held):
            self._tell(held)
            if not held.want.delay:  # given back before it runs out, the name would not stay closed after the loss
                self.abandon(held.want)

    def _drop(self, held: Held) -> None:
        """A lease that nobody can reach any more is not renewed for ever: give it back."""
        if self.forget(held):
            self.abandon(held.want)
            if self._notes is not None:
                self._notes.dropped(held)

    def _until_next_look(self, earliest: float | None, idle: int) -> float | None:
        if earliest is None:
            return None if idle > IDLE_TICKS_UNTIL_PARKED else TICK
        return min(max(earliest - self._world.now(), 0.0), TICK)

    async def renew(self, engine: Engine) -> None:
        """Renew what is due, in batches; what fails is tried again sooner, with jitter."""
        idle = 0
        while not self.closing:
            self._looks_at_renewals_at = LOOKING
            batch, earliest = self._due()
            if batch:
                await self._renew_batch(engine, batch)
                continue
            idle = 0 if earliest is not None else idle + 1
            seconds = self._until_next_look(earliest, idle)
            self._looks_at_renewals_at = NEVER if seconds is None else self._world.now() + seconds
            await self._renew_alarm.sleep(seconds)

    def _due(self) -> tuple[list[Held], float | None]:
        """Leases to renew now, most urgent first, and when the first of all is due.

        Those that will be due soon come along to make fewer trips.
        """
        now = self._world.now()  # asked once for all: ten thousand looks at the clock would cost more than the renewals
        # One that is over and not yet forgotten has a time in the past: waiting for it would be to spin.
        kept = [held for held in self.leases if held.renew_at < NEVER and held.ended is None and now < held.valid_until]
        earliest = min([held.renew_at for held in kept], default=None)
        if earliest is None or earliest > now:
            return [], earliest
        due = [held for held in kept if held.renew_at - held.ttl / 12 <= now]
        return sorted(due, key=lambda held: held.valid_until)[:LARGEST_BATCH], earliest

    async def _renew_batch(self, engine: Engine, batch: list[Held]) -> None:
        sent_at = self._world.now()
        # Renewals wait for each other here, so no request may take longer than the shortest lease can bear.
        budget = min([held.ttl for held in self.leases or batch]) / 3
        until = sent_at + min(max(budget, SHORTEST_REQUEST), LONGEST_REQUEST)
        try:
            answers = await engine.renew([held.renewal() for held in batch], until=until)
        except LeaseholdError as error:
            self._try_again_soon(batch, error)
            return
        for held, kept in zip(batch, answers, strict=True):
            if kept is None:
                self._try_again_soon([held], None)
            elif kept:
                if held.renewed(sent_at, held.ttl):
                    held.renew_at = sent_at + held.ttl / 3
                    if self._notes is not None:
                        self._notes.renewed(held)
            elif held.want.holder in self._leases:  # a lease released meanwhile is rightly unknown to the engine
                held.end(REFUSED)
                self._deadline_alarm.ring()

    def _try_again_soon(self, batch: list[Held], error: LeaseholdError | None) -> None:
        now = self._world.now()
        for held in batch:
            held.renew_at = now + held.ttl / 20 * (0.8 + 0.4 * self._world.chance())
            if self._notes is not None:
                self._notes.not_renewed(held, error)

    async def clean_up(self, engine: Engine) -> None:
        """Give back what was abandoned, until the engine says so or has let go by itself."""
        while True:
            now = self._world.now()
            due = [chore for chore in self._chores if chore.due <= now or self.closing]
            for chore in due:
                self._chores.remove(chore)
                lasts = max(chore.want.ttl, engine.facts.place_stays)  # after which the engine has let go by itself
                if await self._give_back(engine, chore) or self._world.now() >= chore.since + lasts:
                    chore.done()
                else:
                    chore.due = self._world.now() + 0.1 + 0.4 * self._world.chance()
                    self._chores.append(chore)
            if self.closing:
                return
            if not due:
                earliest = min((chore.due for chore in self._chores), default=None)
                await self._chore_alarm.sleep(None if earliest is None else earliest - now)

    async def _give_back(self, engine: Engine, chore: Chore) -> bool:
        """Give back once; returns whether that was all.

        The request that was interrupted went by another connection and may arrive after this one: when there was
        nothing to give back at first, a second look follows. So it does where what was found may have been handed over.
        """
        try:
            found = await engine.release(chore.want.name, chore.want.holder, until=self._world.now() + 1.0)
        except LeaseholdError:
            return False
        looked_before, chore.looked = chore.looked, True
        chore.done()
        return (found and not engine.facts.hands_over) or looked_before
