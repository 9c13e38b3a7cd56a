"""Taking a lease, waiting for it, and giving it back.

An answer that did not come is not a "no": the request is sent again with the same holder, and the engine recognises
its own holder. Whatever happens, `Attempt` knows whether something of ours may be left on the engine.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from leasehold.core.engine import Busy, Engine, Grant, Incumbent, Suspect, Want
from leasehold.core.held import REFUSED, RELEASED, Held, margin
from leasehold.core.worlds import World
from leasehold.errors import EngineError, EngineUnavailable, Misuse, NotAcquired, OutcomeUnknown

SHORTEST_REQUEST = 0.05
"""A request that could not even be answered in a healthy network is not worth sending."""
GRACE = 0.1
"""How long past the caller's wait leaving the queue may take."""
FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 0.6
"""An engine that is back is asked again within a second."""


class Attempt:
    """One acquisition under way. While `exposed`, the engine may hold something for it."""

    __slots__ = ("exposed", "waiting", "want")

    def __init__(self, want: Want) -> None:
        """Nothing was sent yet."""
        self.want, self.exposed = want, False
        self.waiting: Waiting | None = None
        """What is known of an attempt that was not granted at once."""


class Room(Protocol):
    """Lets in a few callers at a time, where many who ask at once would be too many."""

    def enter_at_once(self) -> bool:
        """Be among the few, if there is a place."""
        ...

    async def enter(self, until: float) -> EngineUnavailable | None:
        """Be among the few as soon as there is a place; or say, at `until`, that there was none."""
        ...

    def leave(self) -> None:
        """Let another one in."""
        ...


class Backoff:
    """Exponential, with full jitter and a cap."""

    __slots__ = ("_next", "_world")

    def __init__(self, world: World) -> None:
        """Start small."""
        self._world = world
        self._next = FIRST_BACKOFF

    async def sleep(self, until: float) -> None:
        """Pause for a random part of the current step, but not past `until`."""
        pause = self._world.chance() * self._next
        self._next = min(self._next * 2, LONGEST_BACKOFF)
        left = until - self._world.now()
        if left > 0:
            await self._world.sleep(min(pause, left))


class Suspicion:
    """Watches an incumbent on the asker's own clock.

    An engine whose clock was set back would keep a dead holder for too long. A holder that is alive renews, and each
    renewal moves the beat; one whose beat stands still for a whole lease (and what clocks may differ) has lost it.
    """

    __slots__ = ("_since", "_watched", "_world")

    def __init__(self, world: World) -> None:
        """Nobody is watched yet."""
        self._world = world
        self._watched: Incumbent | None = None
        self._since = 0.0

    def watch(self, incumbent: Incumbent | None) -> None:
        """Take note of what the engine said, after it was said."""
        watched = self._watched
        if incumbent is None or watched is None or incumbent[:2] != watched[:2]:
            self._watched, self._since = incumbent, self._world.now()

    @property
    def proved_in(self) -> float | None:
        """Seconds until the watched incumbent is proved to be gone, if its beat does not move."""
        if self._watched is None:
            return None
        lasts = self._watched.lasts
        return self._since + lasts + margin(lasts, 0.0) - self._world.now()

    @property
    def is_ripe(self) -> bool:
        """Whether the proof is only a moment away. Until then the engine knows best when to ask again."""
        proved_in = self.proved_in
        return self._watched is not None and proved_in is not None and proved_in <= 2 * margin(self._watched.lasts, 0.0)

    @property
    def suspect(self) -> Suspect | None:
        """The incumbent, once it is proved to be gone."""
        proved_in = self.proved_in
        if self._watched is None or proved_in is None or proved_in > 0:
            return None
        return Suspect(self._watched.token, self._watched.beat)


class Waiting:
    """An `acquire` that was not granted at once: what it knows, and how it passes the time until it asks again."""

    __slots__ = (
        "_attempt", "_backoff", "_engine", "_failure", "_give_up_at", "_incumbent", "_suspicion", "_wait", "_world",
        "began", "contended",
    )  # fmt: skip

    def __init__(self, engine: Engine, attempt: Attempt, wait: float, give_up_at: float) -> None:
        """Nothing is known yet."""
        self._engine, self._world, self._attempt, self._wait = engine, engine.world, attempt, wait
        self._give_up_at = give_up_at
        self._backoff: Backoff | None = None
        self._suspicion = Suspicion(self._world)
        self._incumbent: Incumbent | None = None
        self._failure: EngineError | None = None
        self.began, self.contended = give_up_at - wait, False
        attempt.waiting = self

    @property
    def suspect(self) -> Suspect | None:
        """The incumbent, once it is proved to be gone."""
        return self._suspicion.suspect

    def pass_time_after(self, answer: Grant | Busy | EngineError) -> Coroutine[Any, Any, Grant | None]:
        """To be awaited: returns when it is time to ask again; raises when the caller's patience has ended.

        A grant that comes without being asked for again is returned.

        It is no coroutine of its own: each of thousands of waiting tasks would keep one.
        """
        self._failure = answer if isinstance(answer, EngineError) else None
        if isinstance(answer, Busy):
            self.contended = True
            self._incumbent = answer.incumbent
            self._suspicion.watch(answer.incumbent)
            self._attempt.exposed = self._wait > 0
        if self._world.now() >= self._give_up_at:
            return self._give_up()
        if isinstance(answer, Busy):
            return self._engine.wait(self._attempt.want, self._rests_until(answer))
        if self._failure is None:
            return _at_once()
        if self._backoff is None:
            self._backoff = Backoff(self._world)
        return self._backoff.sleep(self._give_up_at)

    async def _give_up(self) -> None:
        """Leave nothing behind, and raise why it failed."""
        want = self._attempt.want
        if self._attempt.exposed:
            try:
                await self._engine.release(want.name, want.holder, until=self._world.now() + GRACE)
                self._attempt.exposed = False
            except EngineError as error:
                self._failure = self._failure or error
        if self._failure is not None:
            self._failure.name = want.name
            raise self._failure
        about = self._incumbent.about if self._incumbent else None
        token = self._incumbent.token if self._incumbent else None
        raise NotAcquired(want.name, wait=self._wait, holder=about, token=token)

    def _rests_until(self, busy: Busy) -> float:
        """When asking makes sense even without news, or the caller's patience ends."""
        ask_again = busy.ask_again
        if self._suspicion.is_ripe:
            ask_again = min(ask_again, max(self._suspicion.proved_in or 0.0, 0.001))
        return min(self._world.now() + ask_again, self._give_up_at)


async def _at_once() -> None:
    """No time is to be passed."""


async def acquire(
    engine: Engine, attempt: Attempt, *, wait: float, request_timeout: float, room: Room | None = None
) -> Held:
    """Take the name within `wait` seconds, or raise `NotAcquired`, or the engine's own error."""
    world, want = engine.world, attempt.want
    sent_at = world.now()
    give_up_at = sent_at + wait
    left = wait
    waiting: Waiting | None = None  # most are granted at once, and pay for nothing else
    answer: Grant | Busy | EngineError | None
    while True:
        answer = None
        if room is not None and not room.enter_at_once():
            answer = await room.enter(sent_at + _request_time(wait, left, request_timeout))
            sent_at = world.now()
            left = give_up_at - sent_at
        if answer is None:
            was_exposed, attempt.exposed = attempt.exposed, True
            try:
                answer = await engine.take(
                    want,
                    until=sent_at + _request_time(wait, left, request_timeout),
                    # The place must outlast the wait: leaving it is what wakes the next one.
                    patience=max(left, 0.0) + SHORTEST_REQUEST + GRACE if wait else None,
                    suspect=waiting.suspect if waiting else None,
                )
            except EngineUnavailable as error:
                answer, attempt.exposed = error, was_exposed
            except OutcomeUnknown as error:
                answer = error
            except Misuse:
                attempt.exposed = was_exposed  # it was not sent
                raise
            finally:
                if room is not None:
                    room.leave()
        if isinstance(answer, Grant) and (held := _believed(engine, want, answer, sent_at)):
            return held
        waiting = waiting or Waiting(engine, attempt, wait, give_up_at)
        rest = waiting.pass_time_after(answer)
        del answer  # not to be kept by everyone of thousands who wait here
        handed = await rest
        if handed is not None:
            since = waiting.began if handed.since is None else handed.since
            if held := _believed(engine, want, handed, since):
                return held
        sent_at = world.now()
        left = give_up_at - sent_at


def _request_time(wait: float, left: float, request_timeout: float) -> float:
    """How long a request may take of one who wants to wait for so long, and has so much left of that."""
    if wait and left < request_timeout:
        return min(request_timeout, max(left, SHORTEST_REQUEST))
    return request_timeout


def _believed(engine: Engine, want: Want, grant: Grant, sent_at: float) -> Held | None:
    """The lease that was granted to a request; None when the answer came after the deadline that it carries.

    Then it must not be used. Asked again, the engine starts the TTL of its own holder anew.
    """
    since = sent_at if grant.since is None else min(sent_at, grant.since)
    world = engine.world
    held = Held(want, grant.token, since, world, engine.facts.extra_margin)
    return held if world.now() < held.valid_until else None


async def release(engine: Engine, held: Held, *, request_timeout: float) -> None:
    """Give back a lease that is `live`; raises `LeaseLost` when it was not held any more.

    Belief ends before the request leaves. A "not yours" that follows an attempt of unknown outcome is taken for that
    attempt's success: the holder's own deadline had not passed when it was sent. If that attempt never arrived, the
    lease has run out since, which harms nobody, for the work was over. What cannot be told apart: a lease that was
    released by force, or lost with the engine's data, before the attempt. `LeaseLost` would then be right; but it would
    be wrong after every answer that was lost, and who must know has a fence.

    This is not for a lease that is over already: in a forked child it would end the parent's lease, and elsewhere a
    lock-delay that must follow the loss. The keeper gives back what may be given back.
    """
    held.end(RELEASED)
    if held.ended is not RELEASED:  # lost since the caller looked
        raise held.loss()
    world, want = engine.world, held.want
    give_up_at = world.now() + request_timeout
    backoff: Backoff | None = None
    uncertain = False
    while True:
        try:
            was_held = await engine.release(want.name, want.holder, until=give_up_at)
        except (EngineUnavailable, OutcomeUnknown) as error:
            uncertain = uncertain or isinstance(error, OutcomeUnknown)
            if world.now() >= give_up_at:
                error.name, error.token = want.name, held.token
                raise
            backoff = backoff or Backoff(world)
            await backoff.sleep(give_up_at)
            continue
        if not (was_held or uncertain):
            held.ended = REFUSED
            raise held.loss()
        return


async def extend(engine: Engine, held: Held, ttl: float, *, request_timeout: float) -> None:
    """Prolong the lease by hand; raises `LeaseLost` when it is not held any more."""
    world = engine.world
    give_up_at = world.now() + request_timeout
    backoff = Backoff(world)
    while held.live:
        sent_at = world.now()
        try:
            kept = await engine.renew([held.renewal(ttl)], until=min(give_up_at, held.valid_until))
        except (EngineUnavailable, OutcomeUnknown) as error:
            if world.now() >= give_up_at:
                error.name, error.token = held.want.name, held.token
                raise
            await backoff.sleep(min(give_up_at, held.valid_until))
            continue
        if kept == [True] and held.renewed(sent_at, ttl):
            held.ttl = ttl
            return
        held.end(REFUSED)
    raise held.loss()
