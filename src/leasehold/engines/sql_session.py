"""Leases that live and die with a connection to a SQL server, whose own locks exclude: what all such servers share.

The server queues who waits and hands the lock over by itself. A connection that is silent for a whole TTL is ended by
the server, and its lock with it: so a lease of this kind has a deadline like any other, and is also over at once when
its process or its connection ends. Tokens come from a table.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic

from leasehold.core.engine import Busy, Capability, Facts, Grant, Renewal, Suspect, Want
from leasehold.engines.family import EngineT, Family
from leasehold.engines.sense import SENSELESS, sensible
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.keeping import log
from leasehold.wires.sockets import BlockingSockets, Sockets
from leasehold.wires.sockets_asyncio import AsyncSockets
from leasehold.wires.sql_pins import Heartbeat, KeyT, Line, Pin, Pins
from leasehold.wires.sql_table import Overdue, Request, Row, Statement, Value

SLICE: Final = 30.0
"""How long one statement waits for a lock, in seconds: while it does, the server cannot clean up dead rows."""
SHORT_WAIT: Final = 0.1
"""Who waits for no longer than this, in seconds, asks once more at the end: a wait in vain costs a connection."""
QUICK_ANSWER: Final = 0.02
SHORTEST_OPENING, SHORTEST_REQUEST = 0.15, 0.05
"""Even a caller in a hurry lets a connection be opened and used once, in seconds: without one, nobody gets anywhere."""
LOOK_EVERY: Final = 0.1
"""How soon a connection that the server has closed is noticed, in seconds: also that of a lease just taken."""
FRESH: Final = 0.1
"""What a wait of less than this share of a TTL has brought is taken as it is, as a lease since the wait began: the
server's timer started no earlier. After a longer wait the timer is started anew, for a round trip."""
AT_REST: Final = 0.5
"""So long before the server may end a connection that rests, in seconds, it is not used again: its end may be on its
way already."""
HEARD_LATELY: Final = 0.25
"""A connection that has answered within so long, in seconds, is believed to work."""
ANSWERS_WITHIN: Final = 1.0
"""One that has not is asked, and given up after so long."""
WORTH_QUEUEING: Final = 1.0
"""Who is patient for so long, in seconds, queues for a name that was busy a moment ago without asking first."""
STAYS_BUSY: Final = 64
"""How often one does so before one asks again."""
MOST_BUSY: Final = 1024
"""Names that are remembered to be busy."""
SWEEP_EVERY: Final = 256
SESSION_CAPABILITIES: Final = frozenset(
    {
        Capability.PUSH_WAIT,
        Capability.INSPECT,
        Capability.BREAK,
        Capability.TOKEN_SURVIVES_RESTART,
        Capability.TOKEN_SURVIVES_DATA_LOSS,
    }
)


class SqlSessionEngine(ABC, Generic[KeyT]):
    """The operations, in either world."""

    def __init__(self, family: SqlSessionFamily[Any, KeyT], sockets: Sockets) -> None:
        self.facts, self.world = family.facts, sockets.world
        self._pins, self._sockets, self._statements = family.pins, sockets, family.statements
        self._key_of, self._namespace, self._address = family.key_of, family.namespace, family.facts.address
        self._looking: asyncio.Task[None] | None = None
        self._tell: Callable[[str], object] = lambda _holder: None
        self._takes_until_sweep = 1 + int(self.world.chance() * SWEEP_EVERY)
        self._heard_at, self._ended = -math.inf, 0
        self._busy: dict[str, int] = {}
        """Names that had to be waited for when they were last asked for, and how often that is believed from now on."""

    def _request(self, what: str, *values: Value) -> Request:
        return Request(self._statements[what], values)

    async def _ask(self, request: Request, until: float) -> list[Row]:
        return await self._pins.ask(request, self._sockets, until)

    # What each server has words of its own for

    @abstractmethod
    async def _try(self, pin: Pin[KeyT], want: Want, patience: float | None, until: float) -> Busy | None:
        """Ask for the lock once, and note the grant in the pin, or say who has it: to one who may wait then."""

    @abstractmethod
    async def _queue(self, pin: Pin[KeyT], want: Want, until: float) -> None:
        """Wait in the server's queue, note a grant in the pin; whatever else comes of it closes or frees the pin."""

    @abstractmethod
    def _heartbeat(self, pin: Pin[KeyT]) -> Request:
        """Starts the server's timer anew, and answers who serves this connection."""

    @abstractmethod
    def _unlocking(self, pin: Pin[KeyT]) -> Request:
        """Gives the lock back, and answers whether it was held by the session that took it."""

    @abstractmethod
    def _was_held(self, pin: Pin[KeyT], rows: list[Row]) -> bool:
        """What that answer says."""

    @abstractmethod
    async def _sweep(self, until: float) -> None:
        """Forget some names that nobody has used for a day; their tokens do not fall."""

    # Taking

    def distrust(self) -> None:
        """An answer made no sense: go on with new connections."""
        self._pins.close_idle()

    @sensible
    async def take(
        self,
        want: Want,
        *,
        until: float,
        patience: float | None = None,
        suspect: Suspect | None = None,  # noqa: ARG002 -- no clock that could be set back keeps these leases
    ) -> Grant | Busy:
        """Take the lock and mint its token in one round trip, or say who has it.

        Where it is likely that somebody has it, who is patient is sent to the server's queue, which gives it to the
        first who comes if nobody has.
        """
        pin = self._pins.get(want.holder)
        if pin is None and patience is not None and patience > WORTH_QUEUEING and self._is_busy(want.name):
            return Busy(SLICE, None)
        if pin is not None and pin.token:
            if pin.posted is not None and self.world.now() > pin.posted.sent_at + pin.posted.ttl:
                self._pins.unpin(pin, clean=False)  # without an answer for a whole TTL: it is not asked for ever
            elif await self._prove(pin, want.ttl, until):
                return Grant(pin.token)
        await self._sweep_now_and_then(until)
        pin = await self._pins.pin(want.holder, self._key_of(self._namespace, want.name), self._sockets, until)
        until = max(until, self.world.now() + SHORTEST_REQUEST)
        with self._pins.closed_on_error(pin):
            busy = await self._try(pin, want, patience, until)
        if busy is None:
            return Grant(pin.token)
        self._pins.unpin(pin, clean=True)
        if len(self._busy) < MOST_BUSY:
            self._busy[want.name] = STAYS_BUSY
        return busy

    def _is_busy(self, name: str) -> bool:
        if self._ended != self._pins.ended:
            self._ended = self._pins.ended
            self._busy.clear()  # another server may know nothing of these names, or of others that have their keys
        # Who queues waits for as long as the caller does, so this is for a server that has answered just now.
        if not self._busy or self.world.now() > self._heard_at + HEARD_LATELY:
            return False
        believed = self._busy.pop(name, 0)
        if believed > 1:
            self._busy[name] = believed - 1
        return believed > 0

    async def _sweep_now_and_then(self, until: float) -> None:
        self._takes_until_sweep -= 1
        # Who is in a hurry leaves it to the next: the one connection that may take longer is not for this.
        if self._takes_until_sweep > 0 or self.world.now() + SHORTEST_OPENING > until:
            return
        self._takes_until_sweep = SWEEP_EVERY
        try:
            await self._sweep(until)
        except EngineError as error:
            log().debug("names that nobody uses could not be swept: %s", error)

    async def _prove(self, pin: Pin[KeyT], ttl: float, until: float) -> bool:
        """Whether a long wait has brought the lock, or an answer that came too late.

        The server's timer may have started long before the answer was here, so it is started anew.
        """
        return await self.renew([Renewal("", pin.holder, pin.token, ttl)], until=until) == [True]

    async def wait(self, want: Want, until: float) -> Grant | None:
        """Wait in the server's own queue, and return with the lock, or without it at `until`."""
        handed = await self._wait(want, until)
        if handed is None and self._pins.get(want.holder) is None:
            self._busy.pop(want.name, None)  # whatever became of it, the next one asks
        return handed

    async def _wait(self, want: Want, until: float) -> Grant | None:
        # Who has waited for long has to ask again: the server's timer is to start anew.
        asked_at = self.world.now()
        left = until - asked_at
        if left < SHORT_WAIT:
            await self.world.sleep(max(left, 0.0))
            return None
        try:
            key = self._key_of(self._namespace, want.name)
            pin = await self._pins.pin(want.holder, key, self._sockets, until)
            with self._pins.closed_on_error(pin):
                await self._queue(pin, want, until)
        except (EngineError, *SENSELESS) as error:
            log().debug("a wait for %s ended without the lock: %s", ascii(want.name), error)
            return None
        is_fresh = self.world.now() - asked_at <= FRESH * want.ttl
        return Grant(pin.token, asked_at) if pin.token and is_fresh else None

    # Keeping

    @sensible
    async def renew(self, leases: Sequence[Renewal], *, until: float) -> list[bool | None]:
        """Send a heartbeat on the connection of each lease, then fetch the answers: a slow one delays no other."""
        began_at = self.world.now()
        # What is not known yet is None. A first, short look leaves nobody waiting behind one that hangs.
        kept: dict[str, bool | None] = {lease.holder: await self._keep(lease, began_at, began_at) for lease in leases}
        for give_up_at in (self.world.now() + QUICK_ANSWER, until):
            for lease in leases:
                if kept[lease.holder] is None:
                    kept[lease.holder] = await self._keep(lease, began_at, min(give_up_at, until))
        if all(one is None for one in kept.values()):
            raise OutcomeUnknown(f"{self._address} did not answer a heartbeat in time")
        return [kept[lease.holder] for lease in leases]

    async def _keep(self, lease: Renewal, began_at: float, until: float) -> bool | None:
        """Whether a lease is kept, by a heartbeat that was sent since `began_at`; None when there is no answer yet."""
        pin = self._pins.get(lease.holder)
        if pin is None or pin.token != lease.token:
            return False
        if not await pin.claim(self._sockets, until):
            return None
        try:
            if self._pins.get(lease.holder) is not pin:
                return False  # it was given back meanwhile, and the connection may serve another lease by now
            pin.ttl = max(pin.ttl, lease.ttl)
            kept = await self._beat(pin, lease.ttl, began_at, until)
        except ConnectionError:
            kept = False
        finally:
            pin.free()
        if kept is False:
            self._give_up(pin)
        return kept

    def _give_up(self, pin: Pin[KeyT]) -> None:
        """Close a connection that was lost, and tell its holder now: the answers to others may be long in coming."""
        self._pins.unpin(pin, clean=False)
        self._tell(pin.holder)

    async def _beat(self, pin: Pin[KeyT], ttl: float, began_at: float, until: float) -> bool | None:
        """Whether a heartbeat for this TTL, sent since `began_at`, found the lock held: an older one proves nothing."""
        while pin.proved.sent_at < began_at or pin.proved.ttl < ttl:
            if pin.posted is None:
                sent_at = self.world.now()
                pin.line.post(self._heartbeat(pin))
                pin.posted = Heartbeat(sent_at, pin.ttl)
            heard = await self._fetch(pin, until)
            if not heard:
                return heard
        return True

    async def _fetch(self, pin: Pin[KeyT], until: float) -> bool | None:
        """The answer to a heartbeat, if one is under way; None when it has not come. Raises `ConnectionError`."""
        if pin.posted is None:
            return True
        answer = await pin.line.answer(until)
        if answer is None:
            return None
        held = bool(answer and answer[0][0] == pin.pid)
        if held:
            pin.proved = pin.posted
        pin.posted = None
        return held

    def when_lost(self, tell: Callable[[str], object]) -> None:
        """Have `tell` called with each holder whose connection the server has closed."""
        self._looking = asyncio.get_running_loop().create_task(self._look_for_losses(tell))

    async def _look_for_losses(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        while True:
            await self.world.sleep(LOOK_EVERY)
            for pin in self._pins.all:
                if pin.token:
                    await self._look(pin)

    async def _look(self, pin: Pin[KeyT]) -> None:
        """Give a connection up if the server has hung up, as far as can be seen without waiting.

        Also one whose heartbeat is under way: the keeper fetches the answers one after the other, and may be waiting
        for that of another lease.
        """
        now = self.world.now()
        if not await pin.claim(self._sockets, now):
            return  # it is in use, and its user will find out
        try:
            if self._pins.get(pin.holder) is not pin:
                return
            lost = not pin.line.is_usable() if pin.posted is None else await self._fetch(pin, now) is False
        except ConnectionError:
            lost = True
        finally:
            pin.free()
        if lost:
            self._give_up(pin)

    # Giving back

    @sensible
    async def release(self, name: str, holder: str, *, until: float) -> bool:  # noqa: ARG002 -- the holder is unique
        """Give the lock back. False when it was not held by this holder any more."""
        pin = self._pins.get(holder)
        if pin is None:
            return False
        if not await pin.claim(self._sockets, until):
            raise OutcomeUnknown(f"the connection of this lease to {self._address} is in use by others")
        try:
            if self._pins.get(holder) is not pin:
                return False
            with self._pins.closed_on_error(pin):
                held = await self._unlock(pin, until)
            self._pins.unpin(pin, clean=held)  # before anybody else has a turn on it
        finally:
            pin.free()
        return held

    async def _unlock(self, pin: Pin[KeyT], until: float) -> bool:
        try:
            heard = await self._fetch(pin, until)
        except ConnectionError:
            return False
        if heard is None:
            raise OutcomeUnknown(f"{self._address} did not answer in time; the lock's connection was closed")
        if not heard or not pin.token or not pin.line.is_usable():
            return False
        try:
            rows = await pin.line.ask(self._unlocking(pin), until)
        except Overdue:
            return False  # the lock went with the session, before this request was read
        except EngineUnavailable as error:
            # Even if it was not sent: the connection is closed now, and that gives the lock back.
            raise OutcomeUnknown(str(error)) from None
        self._heard_at = self.world.now()
        return self._was_held(pin, rows)

    async def close(self) -> None:
        """Close what no lease needs. Leases that are held stay so until their TTL."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._pins.close_idle()

    def forked(self) -> None:
        """In a forked child: let go of every inherited connection of the family."""
        self._pins.forked()


class SqlSessionFamily(Family[EngineT], Generic[EngineT, KeyT]):
    """One database, and what its engines share: the keeper's engine uses the same pinned connections."""

    def __init__(
        self, facts: Facts, namespace: str, statements: dict[str, Statement], key_of: Callable[[str, str], KeyT]
    ) -> None:
        """`key_of` tells the server's name for the lock of a name in a namespace."""
        super().__init__(facts)
        self.namespace, self.statements, self.key_of = namespace, statements, key_of
        self.pins: Pins[KeyT] = Pins(self._connect, self._is_fit)

    @abstractmethod
    async def _connect(self, sockets: Sockets, until: float) -> Line:
        """A connection that the server ends when it is silent for a TTL, with the tables in place."""

    def _is_fit(self, line: Line, now: float) -> bool:  # noqa: ARG002 -- not every server ends idle connections
        """Whether a connection that was idle can be used."""
        return line.is_usable()

    @abstractmethod
    def _engine_over(self, sockets: Sockets) -> EngineT:
        """The operations in one world."""

    def blocking(self) -> EngineT:
        """An engine whose operations block. Threads may share it."""
        return self._engine_over(BlockingSockets())

    def asyncio(self) -> EngineT:
        """An engine for the running event loop. Tasks may share it."""
        return self._engine_over(AsyncSockets())
