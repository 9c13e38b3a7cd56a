"""The terminal, lent to the program while it runs, as a shell lends it to its jobs."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from leasehold.cli.wakeups import handled_as


class Terminal:
    """The controlling terminal.

    The program runs in a process group of its own. Only the group in the foreground may read from the terminal, and
    only that one gets its Ctrl-C and Ctrl-Z; so a program that reads from the terminal must be put there.
    """

    def __init__(self) -> None:
        """Open it. `OSError` when there is none (cron, a service)."""
        self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self.lent = False
        self._modes: list[Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether our own process group is in the foreground."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # it was closed
            return False

    @property
    def serves_stdio(self) -> bool:
        """Whether stdin and stdout are a terminal.

        When they are not, another program may be at work beside us on the terminal, as in ``leasehold run … | less``;
        then it is lent only when the program asks for it.
        """
        return os.isatty(0) and os.isatty(1)

    def lend(self, group: int) -> None:
        """Put the group into the foreground."""
        import termios

        with contextlib.suppress(OSError, termios.error):
            self._modes = termios.tcgetattr(self._descriptor)
            os.tcsetpgrp(self._descriptor, group)
            self.lent = True

    def reclaim(self, *, restore_modes: bool) -> None:
        """Take it back; after a program that was killed, put its modes right as well."""
        import termios

        if not self.lent:
            return
        self.lent = False
        # Who is not in the foreground is stopped for touching the terminal, unless it ignores that signal.
        with contextlib.suppress(OSError, termios.error), handled_as(signal.SIGTTOU, signal.SIG_IGN):
            os.tcsetpgrp(self._descriptor, os.getpgrp())
            if restore_modes and self._modes is not None:
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._modes)


def terminal_or_none() -> Terminal | None:
    """The controlling terminal, if there is one."""
    try:
        return Terminal()
    except OSError:
        return None
