"""An event loop's side of the embedded engine: one mailbox for all its tasks, and threads that wait for the disk."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

from leasehold.wires.local_wake import Mailbox, Post


class AsyncWaiting:
    """All tasks of a loop share one mailbox, however many wait."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._mailbox: Mailbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sleepers: dict[str, asyncio.Future[None]] = {}
        self._context = contextvars.copy_context()  # one for all alarms, of which there are as many as tasks that wait

    def address(self) -> str:
        """The loop's mailbox."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._loop is not loop:
            self._close_mailbox()
            self._mailbox, self._loop = self._post.open_mailbox(), loop
            loop.add_reader(self._mailbox.sock, self._read)
        return self._mailbox.address

    def _read(self) -> None:
        if self._mailbox is None:
            return
        woken, more = self._mailbox.read()
        unknown = [holder for holder in woken if not self._wake(holder)]
        self._mailbox.keep(unknown)
        if more:
            for holder in list(self._sleepers):
                self._wake(holder)

    def _wake(self, holder: str) -> bool:
        sleeper = self._sleepers.get(holder)
        if sleeper is None:
            return False
        self._ring(sleeper)
        return True

    async def wait(self, holder: str, seconds: float) -> None:
        """Suspend the task until there is mail for this holder."""
        if self._mailbox is None or self._loop is None:
            return
        if holder in self._mailbox.early:
            del self._mailbox.early[holder]
            return
        self._sleepers[holder] = sleeper = self._loop.create_future()
        alarm = self._loop.call_later(seconds, self._ring, sleeper, context=self._context)
        try:
            await sleeper
        finally:
            alarm.cancel()
            self._sleepers.pop(holder, None)

    @staticmethod
    def _ring(sleeper: asyncio.Future[None]) -> None:
        if not sleeper.done():
            sleeper.set_result(None)

    def _close_mailbox(self) -> None:
        if self._mailbox is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._mailbox.sock)
            self._mailbox.close()
            self._mailbox = None

    def close(self) -> None:
        """Remove the mailbox; those who wait ask again."""
        self._close_mailbox()
        for holder in list(self._sleepers):
            self._wake(holder)
        self._post.close()

    def forked(self) -> None:
        """In a forked child: leave the parent's mailbox alone."""
        self._mailbox = self._loop = None
        self._sleepers = {}
        self._post.close()


class LoopThreads:
    """Short-lived threads: the loop's own pool may be full of work that takes longer than a lease."""

    async def run(self, work: Callable[[], None]) -> None:
        """Run it, and wait for it without blocking the loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 -- raised again in the loop
                error = raised
            try:
                loop.call_soon_threadsafe(tell, error)
            except RuntimeError:
                if not loop.is_closed():  # a closed loop has nobody left to tell
                    raise

        threading.Thread(target=run, name="leasehold-disk", daemon=True).start()
        await done

    def start(self, work: Callable[[], None]) -> None:
        """Run it without waiting for it."""
        threading.Thread(target=work, name="leasehold-disk", daemon=True).start()
