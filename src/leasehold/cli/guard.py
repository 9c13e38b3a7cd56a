"""The guard: a small process beside ``leasehold run`` that ends the program when nobody else can.

It does two jobs.

It anchors the program's process group. It makes the group and then steps out of it, so that the group's number is the
guard's own process id: while the guard is there (or is a zombie that nobody has reaped), the system gives that number
to nobody else, and a signal to the group cannot hit a stranger. It also lets the terminal be lent to the group before
the program starts.

It is the dead man's switch. `leasehold run` tells it every new deadline. When no new one comes in time, because the
parent stalls, it sends SIGKILL to the group; when the parent is gone (its end of the pipe closes), it goes through the
steps of ``--on-lost``. It is forked before there are threads, and asks neither an engine nor the network.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import struct
import time
from typing import NoReturn

from leasehold.cli.groups import send_to_group, someone_lives_in
from leasehold.cli.on_lost import Countdown, Steps, Window
from leasehold.worlds import boot_clock

_MESSAGE = struct.Struct("=cd")
_DEADLINE, _PROGRAM = b"d", b"p"
_LOOKS_EVERY = 1.0
"""A pause of the whole machine does not count for `poll`, so the guard looks at the clock this often."""
_ENDING_LOOKS_EVERY = 0.05


class Guard:
    """The parent's side."""

    def __init__(self, steps: Steps, window: Window) -> None:
        """Fork it; there must be no other thread yet."""
        listening, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self.pid = os.fork()
        if self.pid == 0:
            _be_the_guard(listening, steps, window)
        os.close(listening)
        # Both sides do this, so that neither has to wait for the other.
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)

    @property
    def group(self) -> int:
        """The program's process group."""
        return self.pid

    def tell_deadline(self, deadline: float) -> None:
        """Until when the program may live if nothing else is said."""
        self._tell(_DEADLINE, deadline)

    def tell_program(self, pid: int) -> None:
        """The program has started: leave its group to it."""
        self._tell(_PROGRAM, float(pid))
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, os.getpgrp())

    def dismiss(self) -> None:
        """Nothing is left to guard. From here on the number of the group may belong to somebody else."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)

    def _tell(self, what: bytes, value: float) -> None:
        # Somebody killed or stopped the guard: the parent goes on without.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pipe, _MESSAGE.pack(what, value))


def _be_the_guard(pipe: int, steps: Steps, window: Window) -> NoReturn:
    try:
        _stand_apart(pipe)
        _Watch(pipe, steps, window).run()
    finally:
        os._exit(0)


def _stand_apart(pipe: int) -> None:
    """Keep nothing open that others wait for, and let no signal but SIGKILL end the guard."""
    os.setpgid(0, 0)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 65536)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:  # noqa: PTH123 -- cheap
        comm.write("lease-guard")  # so that `killall leasehold` does not take the guard along


class _Watch:
    """The guard's side."""

    def __init__(self, pipe: int, steps: Steps, window: Window) -> None:
        self._pipe, self._steps = pipe, steps
        # The parent ends the program a little earlier; the guard is the second line.
        self._reserve = window.reserve / 2
        self._group = os.getpid()
        self._deadline: float | None = None
        self._program: _Process | None = None

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while True:
            if poll.poll(self._patience() * 1000):
                message = os.read(self._pipe, _MESSAGE.size)
                if not message:
                    return self._end_program()
                self._note(*_MESSAGE.unpack(message))
            elif self._left() <= 0:
                self._send(signal.SIGKILL)

    def _left(self) -> float:
        return math.inf if self._deadline is None else self._deadline - self._reserve - boot_clock()

    def _patience(self) -> float:
        left = self._left()
        return min(left, _LOOKS_EVERY) if left > 0 else _LOOKS_EVERY

    def _note(self, what: bytes, value: float) -> None:
        if what == _DEADLINE:
            self._deadline = value
        elif hasattr(os, "pidfd_open"):
            # The parent has not reaped the program yet, so this is it and no other process.
            with contextlib.suppress(OSError):
                self._program = _Process(int(value))

    def _end_program(self) -> None:
        """The parent is gone: nobody renews the lease any more."""
        if self._deadline is None:
            return
        countdown = Countdown(self._steps, now=boot_clock(), deadline=self._deadline, reserve=self._reserve)
        while countdown.next_at is not None:
            for signum in countdown.due(boot_clock()):
                self._send(signum)
            if not self._someone_lives():
                return
            time.sleep(_ENDING_LOOKS_EVERY)

    def _someone_lives(self) -> bool:
        return someone_lives_in(self._group, but=os.getpid()) or (self._program is not None and self._program.lives)

    def _send(self, signum: int) -> None:
        """To the group, and to the program itself in case it has left the group."""
        if self._program is not None and self._program.is_outside(self._group):
            self._program.send(signum)
        send_to_group(self._group, signum)


class _Process:
    """A process that cannot be mistaken for a later one with the same number."""

    def __init__(self, pid: int) -> None:
        self._pid, self._descriptor = pid, os.pidfd_open(pid)

    @property
    def lives(self) -> bool:
        return not select.select([self._descriptor], [], [], 0)[0]

    def is_outside(self, group: int) -> bool:
        try:
            return os.getpgid(self._pid) != group and self.lives
        except ProcessLookupError:
            return False

    def send(self, signum: int) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._descriptor, signum)
