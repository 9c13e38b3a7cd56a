"""A lease: one grant, held until a deadline that its holder can always ask for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from leasehold import watching
from leasehold.core.acquire import extend, release
from leasehold.core.held import RELEASED, Held
from leasehold.core.worlds import run_blocking
from leasehold.errors import EngineError, LeaseLost, Misuse, quoted
from leasehold.names import check_ttl, check_wait

if TYPE_CHECKING:
    import asyncio

    from leasehold.core.engine import Engine
    from leasehold.keeping import KeeperThread

NOTICE_RELEASE_WITHIN = 0.25
"""Who waits for a loss is told of it at once; that it will never come, because of a release, is noticed this soon."""

BY_HAND = "by hand "


class LeaseView:
    """What a lease can be asked without talking to the engine. Any thread or task may ask."""

    __slots__ = ("__weakref__", "_engine", "_entries", "_held", "_keeper", "_request_timeout")

    def __init__(self, held: Held, engine: Engine, keeper: KeeperThread, request_timeout: float) -> None:
        self._held, self._engine, self._keeper = held, engine, keeper
        self._request_timeout = request_timeout
        self._entries: set[str] | None = None
        """What holds it, when it is reentrant: a block, or (with `BY_HAND`) who acquired it without one."""

    @property
    def name(self) -> str:
        """The name that is held."""
        return self._held.want.name

    @property
    def token(self) -> int:
        """The fencing token: strictly greater than every token granted before for this name."""
        return self._held.token

    @property
    def holder(self) -> str:
        """Who holds it, for people: ``label@host:pid``. The secret that proves it is never shown."""
        return self._held.want.about

    @property
    def ttl(self) -> float:
        """How long the lease lasts from each renewal, in seconds."""
        return self._held.ttl

    @property
    def valid_until(self) -> float:
        """The deadline, on the clock of `leasehold.worlds.boot_clock`."""
        return self._held.valid_until

    @property
    def remaining(self) -> float:
        """Seconds for which the lease may still be believed; 0 when it is over."""
        return self._held.remaining

    @property
    def lost(self) -> bool:
        """Whether the lease may no longer be held. A hint: only a fence at the resource protects a write."""
        return self._held.lost

    @property
    def released(self) -> bool:
        """Whether the lease was given back in time."""
        return self._held.ended is RELEASED

    def check(self, need: float = 0.0) -> None:
        """Raise `LeaseLost` unless the lease may be believed now, and for `need` more seconds."""
        held = self._held
        if not held.live:
            raise held.loss()
        if need and held.remaining < check_wait(need, what="need"):
            raise LeaseLost(
                self.name, f"{held.remaining:.3g} s are left of it, {need:.3g} s are needed", token=self.token
            )

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Have `callback` called once, in its own thread, when the lease is lost (at once if it is lost already)."""
        from leasehold.keeping import call_listener

        def in_own_thread(loss: LeaseLost) -> None:
            arguments = (callback, loss)
            threading.Thread(target=call_listener, args=arguments, name="leasehold-on-lost", daemon=True).start()

        self._listen(in_own_thread)

    def _listen(self, listener: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], object]:
        """Add a listener that is called exactly once, also when the loss happens meanwhile; returns what was added."""
        told = threading.Lock()

        def once(loss: LeaseLost) -> None:
            if told.acquire(blocking=False):
                listener(loss)

        held = self._held
        held.listeners.append(once)
        if held.lost:
            once(held.loss())
        return once

    def _still_entered(self, entry: str | None) -> bool:
        """Take back one entry of a reentrant lease (this one, or one made by hand); whether others are left."""
        if not self._entries:
            return False
        self._entries.discard(entry or max(self._entries, key=lambda one: one.startswith(BY_HAND)))
        return bool(self._entries)

    def _drop(self, entry: str | None) -> None:
        """End it now, in whatever state an interruption has left it; the keeper gives it back."""
        held = self._held
        if self._still_entered(entry) or held.lost:
            return
        held.end(RELEASED)
        if self._keeper.forget(held) and watching.watchers:
            watching.ended(self._engine.facts, held)
        self._keeper.abandon(held.want)

    def _loss_inside(self, error: BaseException | None) -> None:
        """At the end of a body: tell of a loss without hiding the body's own error."""
        loss = self._held.loss()
        if error is None:
            raise loss
        error.add_note(f"leasehold: {loss}")

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost else f"{self.remaining:.3g} s left"
        return f"<{type(self).__name__} {quoted(self.name)} token={self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise Misuse("a lease belongs to the process that acquired it and cannot be pickled; send its token instead")


class Lease(LeaseView):
    """A lease of the blocking world. Leaving its ``with`` block releases it.

    >>> import leasehold, tempfile, pathlib
    >>> with leasehold.Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db") as locks:
    ...     with locks.lock("nightly-export", ttl=30) as lease:
    ...         lease.check()
    ...         lease.token > 0
    True
    """

    __slots__ = ()

    def release(self) -> None:
        """Give the lease back. Raises `LeaseLost` when it was not held any more."""
        self._release(None)

    def _release(self, entry: str | None) -> None:
        if self._entries and self._still_entered(entry):
            return
        held = self._held
        if not held.live:  # if it is lost, the keeper still has to tell those who listen, and to clean up
            raise held.loss()
        kept = False
        try:
            kept = self._keeper.forget(held)
            run_blocking(release(self._engine, held, request_timeout=self._request_timeout))
        except LeaseLost:
            raise
        except BaseException:
            self._drop(entry)
            raise
        finally:
            if kept and watching.watchers:  # of others the keeper has told already
                watching.ended(self._engine.facts, held)

    def extend(self, ttl: float | None = None) -> None:
        """Let the lease last `ttl` seconds from now (its own TTL when none is given); never shortens it."""
        seconds = self.ttl if ttl is None else check_ttl(ttl, least=self._engine.facts.least_ttl)
        run_blocking(extend(self._engine, self._held, seconds, request_timeout=self._request_timeout))

    def wait_lost(self, timeout: float) -> bool:
        """Block until the lease is lost or released; returns whether it was lost. At most `timeout` seconds."""
        give_up_at = self._held.world.now() + check_wait(timeout, what="timeout")
        told = threading.Event()
        listener = self._listen(lambda _loss: told.set())
        while self._held.live:
            left = min(give_up_at - self._held.world.now(), self.remaining, NOTICE_RELEASE_WITHIN)
            if left <= 0 or told.wait(left):
                break
        self._held.listeners.remove(listener)
        return self.lost

    def __enter__(self) -> Self:
        """Hold until the end of the block."""
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. A loss is raised, unless the body raised: then it is added to that error as a note."""
        self._leave(None, error)

    def _leave(self, entry: str | None, error: BaseException | None) -> None:
        try:
            if self._held.ended is not RELEASED:
                self._release(entry)
        except LeaseLost:
            self._loss_inside(error)
        except EngineError as failure:
            if error is None:
                raise
            error.add_note(f"leasehold: while releasing: {failure}")
        except BaseException:
            self._drop(entry)
            raise


class AsyncLease(LeaseView):
    """A lease of the asyncio world. Leaving its ``async with`` block releases it."""

    __slots__ = ("_body", "_cancelled_body")

    def __init__(self, held: Held, engine: Engine, keeper: KeeperThread, request_timeout: float) -> None:
        super().__init__(held, engine, keeper, request_timeout)
        self._body: asyncio.Task[Any] | None = None
        self._cancelled_body = False

    async def release(self) -> None:
        """Give the lease back. Raises `LeaseLost` when it was not held any more."""
        await self._release(None)

    async def _release(self, entry: str | None) -> None:
        if self._entries and self._still_entered(entry):
            return
        held = self._held
        if not held.live:  # if it is lost, the keeper still has to tell those who listen, and to clean up
            raise held.loss()
        kept = False
        try:
            kept = self._keeper.forget(held)
            await release(self._engine, held, request_timeout=self._request_timeout)
        except LeaseLost:
            raise
        except BaseException:
            self._drop(entry)
            raise
        finally:
            if kept and watching.watchers:  # of others the keeper has told already
                watching.ended(self._engine.facts, held)

    async def extend(self, ttl: float | None = None) -> None:
        """Let the lease last `ttl` seconds from now (its own TTL when none is given); never shortens it."""
        seconds = self.ttl if ttl is None else check_ttl(ttl, least=self._engine.facts.least_ttl)
        await extend(self._engine, self._held, seconds, request_timeout=self._request_timeout)

    async def wait_lost(self) -> bool:
        """Wait until the lease is lost or its deadline passes; returns whether it was lost (not released)."""
        import asyncio

        loop, told = asyncio.get_running_loop(), asyncio.Event()
        listener = self._listen(lambda _loss: loop.call_soon_threadsafe(told.set))
        try:
            while self._held.live:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self.remaining, NOTICE_RELEASE_WITHIN)):
                        await told.wait()
        finally:
            self._held.listeners.remove(listener)
        return self.lost

    def cancel_body_when_lost(self) -> None:
        """Have the current task cancelled when the lease is lost; the block then ends with `LeaseLost`."""
        import asyncio

        loop, self._body = asyncio.get_running_loop(), asyncio.current_task()
        self._listen(lambda _loss: loop.call_soon_threadsafe(self._cancel_body))

    def _cancel_body(self) -> None:
        if self._body is not None:
            self._cancelled_body = True
            self._body.cancel("the lease was lost")

    def _is_our_cancellation(self, error: BaseException | None) -> bool:
        import asyncio

        body, self._body = self._body, None
        if not self._cancelled_body or body is None:
            return False
        # Somebody else may have cancelled the task as well; then it stays cancelled.
        return body.uncancel() == 0 and isinstance(error, asyncio.CancelledError)

    async def __aenter__(self) -> Self:
        """Hold until the end of the block."""
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release. A loss is raised, unless the body raised: then it is added to that error as a note."""
        await self._leave(None, error)

    async def _leave(self, entry: str | None, error: BaseException | None) -> None:
        if self._is_our_cancellation(error):
            error = None
        if self._held.ended is RELEASED:
            return
        try:
            await self._release(entry)
        except LeaseLost:
            self._loss_inside(error)
        except EngineError as failure:
            if error is None:
                raise
            error.add_note(f"leasehold: while releasing: {failure}")
