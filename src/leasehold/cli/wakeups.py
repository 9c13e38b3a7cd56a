"""How ``leasehold run`` waits: for a signal, for news of its lease, or for a time, whichever comes first."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Self

from leasehold.cli.exits import Interrupted

Handler = Callable[[int, FrameType | None], object] | int | None
_NEWS = 0
"""No signal has this number."""


class Wakeups:
    """Signals as data: none is lost, and none interrupts anything but `wait`."""

    def __init__(self, signals: Iterable[int]) -> None:
        """A signal that our caller had us ignore (``nohup``) stays ignored, here and in the program."""
        self._signals = [s for s in signals if s == signal.SIGCHLD or signal.getsignal(s) != signal.SIG_IGN]
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        self._listening, self._bell = os.pipe()
        os.set_blocking(self._listening, False)
        os.set_blocking(self._bell, False)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        for signum in self._signals:
            self._before[signum] = signal.signal(signum, _only_wake)
        self._poll = select.poll()
        self._poll.register(self._listening, select.POLLIN)
        return self

    def ring(self) -> None:
        """Wake the waiter, from any thread."""
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it is gone
            os.write(self._bell, bytes([_NEWS]))

    def wait(self, seconds: float) -> list[int]:
        """The signals that have come, after at most so many seconds."""
        # A millisecond more, since a clock that shows the time just before the due one would make a busy loop.
        if not self._poll.poll(max(seconds, 0.0) * 1000 + 1):
            return []
        return [signum for signum in os.read(self._listening, 1024) if signum != _NEWS]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._listening)
        os.close(self._bell)


def _only_wake(_signum: int, _frame: FrameType | None) -> None:
    """The number is in the pipe already."""


@contextlib.contextmanager
def interruptible(signals: Iterable[int]) -> Iterator[None]:
    """While in here, these signals raise `Interrupted`, so that a wait is left with everything given back."""

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        raise Interrupted(signum)

    before = {s: signal.signal(s, interrupt) for s in signals if signal.getsignal(s) != signal.SIG_IGN}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def handled_as(signum: int, handler: Handler) -> Iterator[None]:
    """While in here, a signal has another handler."""
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)
