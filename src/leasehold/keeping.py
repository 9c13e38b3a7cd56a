"""The keeper's thread: an event loop of its own, so that no blocked caller or loop starves renewals."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasehold import watching
from leasehold.core.engine import TellsLosses
from leasehold.core.keeper import Keeper
from leasehold.worlds import BlockingWorld

if TYPE_CHECKING:
    import asyncio
    import logging

    from leasehold.core.engine import EngineFamily, Facts, Want
    from leasehold.core.held import Held
    from leasehold.errors import LeaseholdError, LeaseLost


def log() -> logging.Logger:
    """The library's logger. Logging is imported when there is something to say, which is seldom."""
    import logging

    return logging.getLogger("leasehold")


importing = threading.Lock()
"""Held while a keeper imports what it needs: a child forked in the middle of that would have half a module for ever."""


class LoopAlarm:
    """An alarm for a loop that runs in another thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._rung = False

    async def sleep(self, seconds: float | None) -> None:
        """Sleep for so long, or until rung."""
        import asyncio

        if self._event is None:
            self._event, self._loop = asyncio.Event(), asyncio.get_running_loop()
        if not self._rung:
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._rung = False
        self._event.clear()

    def ring(self) -> None:
        """Wake the sleeper, from any thread."""
        self._rung = True
        if self._loop is not None and self._event is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:  # closed in between: nobody sleeps there any more
                log().debug("the keeper's loop closed while being rung")


class KeeperThread:
    """Starts the keeper when it is first needed, and stops it with its client."""

    def __init__(self, family: EngineFamily) -> None:
        self._family = family
        self._starting = threading.RLock()  # a signal handler may come by here, too
        self._thread: threading.Thread | None = None
        self._keeper: Keeper | None = None
        self._gave_back = threading.Event()
        """Set when a keeper that is closed asks the engine for nothing any more."""
        self.belongs_to: object = None
        """Whose fork and exit handlers reach this keeper: they must live for as long as any of its leases."""

    @property
    def leases(self) -> list[Held]:
        """The leases kept now."""
        return self._keeper.leases if self._keeper is not None else []

    def keep(self, held: Held, *, renewed: bool) -> None:
        """Watch over a lease, and renew it if asked to."""
        keeper = self._keeper
        if keeper is None:
            keeper = self._start()
        keeper.keep(held, renewed=renewed)

    def forget(self, held: Held) -> bool:
        """Stop keeping a lease; False when the keeper had let go of it already."""
        return self._keeper is not None and self._keeper.forget(held)

    def abandon(self, want: Want) -> threading.Event:
        """Give back in the background what the engine may hold; the event is set when that is done."""
        done = threading.Event()
        (self._keeper or self._start()).abandon(want, done.set)
        return done

    def _start(self) -> Keeper:
        with self._starting:
            if self._keeper is None:
                notes = KeeperNotes(self._family.facts)
                keeper = Keeper(BlockingWorld(), LoopAlarm, notes.lost, notes)
                # The thread must not keep its client alive: one that nobody can reach any more takes it along.
                gave_back = threading.Event()
                run = (keeper, self._family, weakref.ref(self), gave_back)
                thread = threading.Thread(target=_run, args=run, name="leasehold-keeper", daemon=True)
                thread.start()
                weakref.finalize(self, keeper.close).atexit = False
                return self._adopt(keeper, thread, gave_back)
            return self._keeper

    def _adopt(self, keeper: Keeper, thread: threading.Thread, gave_back: threading.Event) -> Keeper:
        if self._keeper is not None:  # a signal handler has started one meanwhile
            keeper.close()
            return self._keeper
        self._keeper, self._thread, self._gave_back = keeper, thread, gave_back
        return keeper

    def died(self, keeper: Keeper) -> None:
        """Start another one when it is needed next."""
        if self._keeper is keeper:
            self._keeper = None

    def close(self, timeout: float) -> None:
        """Give back what is still to be given back, and end the thread; who still holds is told when that is over."""
        keeper, thread = self._keeper, self._thread
        self._keeper = self._thread = None
        if keeper is None or thread is None:
            return
        keeper.close()
        if thread is threading.current_thread():
            return
        if keeper.leases:  # until they have run out, it has something to tell
            self._gave_back.wait(timeout)
        else:
            thread.join(timeout)

    def forked(self) -> None:
        """In a forked child there is no such thread: forget it, and start another when needed."""
        self._starting = threading.RLock()
        self._keeper = self._thread = None


def _run(keeper: Keeper, family: EngineFamily, thread: weakref.ref[KeeperThread], gave_back: threading.Event) -> None:
    with importing:
        import asyncio
    try:
        asyncio.run(_loops(keeper, family, gave_back))
    except Exception:  # noqa: BLE001 -- whatever it was: every holder is told
        log().exception("the keeper stopped unexpectedly; every lease that it kept is reported as lost")
    finally:
        if not keeper.closing:
            owner = thread()
            if owner is not None:
                owner.died(keeper)
            keeper.died()


async def _loops(keeper: Keeper, family: EngineFamily, gave_back: threading.Event) -> None:
    import asyncio

    with importing:
        engine = family.asyncio()
    if isinstance(engine, TellsLosses):
        engine.when_lost(keeper.revoked)
    async with asyncio.TaskGroup() as watching_over:
        watching_over.create_task(keeper.watch_deadlines())
        try:
            async with asyncio.TaskGroup() as asking:
                asking.create_task(keeper.renew(engine))
                asking.create_task(keeper.clean_up(engine))
        finally:
            await engine.close()
            gave_back.set()


def tell(held: Held) -> None:
    """Tell those who listen that the lease was lost. A listener that fails harms nobody else."""
    loss = held.loss()
    for listener in list(held.listeners):
        call_listener(listener, loss)


class KeeperNotes:
    """What the keeper of one client says to its holders and to those who watch."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def lost(self, held: Held) -> None:
        """The holder first: it has to stop its work."""
        tell(held)
        if watching.watchers:
            watching.ended(self._facts, held)

    def dropped(self, held: Held) -> None:
        """See `Notes`."""
        if watching.watchers:
            watching.ended(self._facts, held)

    def renewed(self, held: Held) -> None:
        """See `Notes`."""
        if watching.watchers:
            watching.renewed(self._facts, held)

    def not_renewed(self, held: Held, error: LeaseholdError | None) -> None:
        """See `Notes`."""
        if watching.watchers:
            watching.not_renewed(self._facts, held, error)


def call_listener(listener: Callable[[LeaseLost], object], loss: LeaseLost) -> None:
    """Call one, and log what it raises."""
    try:
        listener(loss)
    except Exception:  # noqa: BLE001 -- it is logged, and the other listeners must still be told
        log().exception("a listener to the loss of a lease failed")
