"""A program under a lease: from its start until nothing of it is left.

One loop in one thread. It forwards signals, watches the lease, ends the program's whole process group when the lease
cannot be kept, and lends the terminal. It never asks the engine, except when a suspended job is taken up again: that
is the keeper's work, so a hung engine cannot delay the end of the program.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leasehold.cli.groups import send_to_group, someone_lives_in
from leasehold.cli.guard import Guard
from leasehold.cli.on_lost import Countdown, Steps, Window
from leasehold.cli.output import say
from leasehold.cli.terminal import terminal_or_none
from leasehold.cli.wakeups import Wakeups, handled_as
from leasehold.errors import EngineError, LeaseLost, quoted, seconds_text
from leasehold.lease import Lease
from leasehold.worlds import boot_clock

FORWARDED = tuple(
    int(getattr(signal, name)) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")
)
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# Python ignores the first two for itself, and we the third; an ignored signal would stay ignored in the program.
_RESET_FOR_PROGRAM = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU)

STRAGGLERS_MAY_TAKE = 0.2
"""The rest of a pipeline may end this much later than the program without being called left behind."""
DEATH_MAY_TAKE = 5.0
"""Who has not ended so long after SIGKILL hangs in the system; nobody can end it."""
_LOOKS_AT_GROUP_EVERY = 0.03
_LOOKS_AT_LEASE_EVERY = 5.0


class NotStarted(Exception):
    """The system could not start the program."""

    def __init__(self, cause: OSError) -> None:
        """`cause` is what the system said."""
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended."""

    code: int
    """The program's exit code; 128 and the signal's number when a signal ended it."""
    lost: str | None
    """Why the program had to be ended, when it was because of its lease."""
    gone: bool
    """Whether all of the program's group is gone."""
    interrupted: bool
    """Whether Ctrl-C ended it."""
    had_terminal: bool
    """Whether the terminal was lent to it, so that nobody else saw the Ctrl-C."""


class Supervisor:
    """Runs one program under one lease."""

    def __init__(self, lease: Lease, steps: Steps, window: Window, guard: Guard) -> None:
        """`steps` must fit the window."""
        self._lease, self._steps, self._window, self._guard = lease, steps, window, guard
        self._group = guard.group
        self._terminal = terminal_or_none()
        self._pid = 0
        self._status: int | None = None
        self._ended_at = 0.0
        self._told_deadline = 0.0
        self._countdown: Countdown | None = None
        self._lost: str | None = None
        self._interrupted = self._had_terminal = False

    @property
    def started(self) -> bool:
        """Whether there is, or was, a program."""
        return self._pid != 0

    def run(self, program: Sequence[str], environment: Mapping[str, str]) -> Ending:
        """Start the program and see it through. `NotStarted` when it cannot be started."""
        signals = (*FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
        with Wakeups(signals) as self._wakeups, handled_as(signal.SIGTTOU, signal.SIG_IGN):
            self._lease.on_lost(lambda _loss: self._wakeups.ring())
            try:
                self._start(program, environment)
                self._see_through()
            except BaseException:
                if self.started:  # a defect of ours must not set the program free
                    self._send(signal.SIGKILL)
                raise
            finally:
                if self._terminal is not None:
                    self._terminal.reclaim(restore_modes=self._countdown is not None)
        return self._ending()

    def _start(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        self._tell_guard()
        if self._terminal is not None and self._terminal.serves_stdio:
            self._lend_terminal()
        try:
            self._pid = os.posix_spawnp(
                program[0], list(program), environment, setpgroup=self._group, setsigdef=_RESET_FOR_PROGRAM
            )
        except OSError as error:
            raise NotStarted(error) from None
        self._guard.tell_program(self._pid)

    def _see_through(self) -> None:
        while True:
            self._reap()
            if self._is_over():
                return
            self._follow_lease()
            self._end_stragglers()
            if self._countdown is not None:
                for signum in self._countdown.due(boot_clock()):
                    self._send(signum)
            for signum in self._wakeups.wait(self._patience()):
                self._handle(signum)

    # What comes in

    def _handle(self, signum: int) -> None:
        self._interrupted = self._interrupted or signum == signal.SIGINT
        if signum == signal.SIGCONT:
            self._follow_lease()
            if self._lost is not None:
                return  # what is stopped now must not run again
        if signum != signal.SIGCHLD:
            # A stop asked of us is one of the program first: we may only stop when it has.
            self._send(signum)

    def _reap(self) -> None:
        while self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self._program_stopped(os.WSTOPSIG(status))
            else:
                self._status, self._ended_at = status, boot_clock()

    def _follow_lease(self) -> None:
        self._tell_guard()
        if self._lost is not None:
            return
        try:
            self._lease.check()
        except LeaseLost as loss:
            self._lose(f"was lost: {loss.reason}")
            return
        left = self._lease.valid_until - boot_clock()
        if left <= self._steps.total + self._window.reserve:
            self._lose(f"cannot be kept: {self._why_it_ends(left)}")

    def _why_it_ends(self, left: float) -> str:
        held = self._lease._held
        if held.hold_until is not None and held.valid_until >= held.hold_until:
            return f"its longest hold of {self._window.longest_hold:g} s ends in {seconds_text(left)}"
        return f"it could not be renewed and ends in {seconds_text(left)}"

    def _tell_guard(self) -> None:
        deadline = self._lease.valid_until
        if deadline != self._told_deadline:
            self._guard.tell_deadline(deadline)
            self._told_deadline = deadline

    # Ending the program

    def _lose(self, why: str) -> None:
        self._lost = why
        self._begin(self._steps)
        told = f"the lease on {quoted(self._lease.name)} (token {self._lease.token}) {why}"
        say(f"{told}; {self._what_follows()}" if self._status is None else told)

    def _begin(self, steps: Steps) -> None:
        if self._countdown is None:
            self._countdown = Countdown(
                steps, now=boot_clock(), deadline=self._lease.valid_until, reserve=self._window.reserve
            )

    def _what_follows(self) -> str:
        assert self._countdown is not None
        until_kill = self._countdown.kill_at - boot_clock()
        if until_kill <= 0 or not self._steps.pauses:
            return "the program gets SIGKILL"
        first = signal.Signals(self._steps.pauses[0][0]).name
        return f"the program gets {first}, and SIGKILL in {seconds_text(until_kill)}"

    def _end_stragglers(self) -> None:
        """What the program left behind in its group would go on without the lease."""
        if self._status is None or self._countdown is not None:
            return
        if boot_clock() >= self._ended_at + STRAGGLERS_MAY_TAKE:
            self._begin(self._steps)
            say(f"the program has ended but left processes behind in its group {self._group}; ending them")

    def _send(self, signum: int) -> None:
        """To the group, and to the program itself where it has left the group (as an interactive shell does)."""
        send_to_group(self._group, signum)
        if self._status is None and self._program_left_group():
            os.kill(self._pid, signum)  # not reaped yet, so the number is still its own

    def _program_left_group(self) -> bool:
        try:
            return os.getpgid(self._pid) != self._group
        except ProcessLookupError:  # some systems say so of a process that has ended but was not reaped
            return False

    def _is_over(self) -> bool:
        if self._status is not None and not someone_lives_in(self._group):
            return True
        return self._countdown is not None and boot_clock() > self._countdown.kill_at + DEATH_MAY_TAKE

    def _patience(self) -> float:
        if self._status is not None:
            return _LOOKS_AT_GROUP_EVERY
        now = boot_clock()
        if self._countdown is not None:
            due = self._countdown.next_at
            return due - now if due is not None else DEATH_MAY_TAKE
        left = self._lease.valid_until - self._steps.total - self._window.reserve - now
        return min(left, self._window.shortest / 6, _LOOKS_AT_LEASE_EVERY)

    # The terminal

    def _lend_terminal(self) -> None:
        if self._terminal is not None and self._terminal.is_ours:
            self._terminal.lend(self._group)
            self._had_terminal = self._had_terminal or self._terminal.lent

    def _program_stopped(self, signum: int) -> None:
        """Stop with it when the terminal stopped it; SIGSTOP was sent by someone who will know why."""
        if self._terminal is None or signum not in _STOPS or self._countdown is not None:
            return
        if signum != signal.SIGTSTP and self._terminal.is_ours:
            self._lend_terminal()
            self._send(signal.SIGCONT)
            return
        # While we are stopped nobody renews, so nothing of the program may run.
        self._send(signal.SIGSTOP)
        with handled_as(signum, signal.SIG_DFL):
            os.kill(0, signum)  # all of our job, as the terminal does; we stop here, unless there is no shell to ask
        self._take_up_again()

    def _take_up_again(self) -> None:
        """Let the program go on only if the lease has outlived the pause."""
        try:
            self._lease.extend()
        except LeaseLost as loss:
            # It must not run another instruction: no grace, it is killed where it stands.
            self._begin(Steps(()))
            self._lose(f"was lost: {loss.reason}")
            return
        except EngineError:
            pass  # the deadline stands, and is watched as always
        if self._had_terminal:
            self._lend_terminal()
        self._send(signal.SIGCONT)

    # The end

    def _ending(self) -> Ending:
        status = self._status
        signum = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
        code = 128 + (signum or signal.SIGKILL) if status is None or signum else os.waitstatus_to_exitcode(status)
        return Ending(
            code=code,
            lost=self._lost,
            gone=status is not None and not someone_lives_in(self._group),
            interrupted=signum == signal.SIGINT and (self._interrupted or self._had_terminal),
            had_terminal=self._had_terminal,
        )
