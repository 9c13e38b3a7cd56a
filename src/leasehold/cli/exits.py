"""Exit codes that scripts can rely on; those from 64 on have the meaning of ``sysexits.h`` where it has one."""

from __future__ import annotations

OK = 0
NOTHING_DONE = 1
"""There was nothing to do, or the person said no."""
USAGE = 64
"""The arguments cannot be right; nothing was sent to the engine."""
BROKEN = 70
"""A defect of Leasehold itself."""
NOT_WRITTEN = 74
"""The answer, or a file that was asked for, could not be written; an answer that can be shown all the same is shown."""
BUSY = 75
"""The name was not free within the wait; the program did not run."""
DONE_BEFORE = 76
"""The tick was done before, or reported as missed; the program did not run."""
LOST = 77
"""The lease was lost, or could not be kept any longer, while the program ran."""
UNREACHABLE = 78
"""The engine could not be reached, or did not do what was asked."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128
"""Added to the number of the signal that ended the program, as shells do."""


class Interrupted(BaseException):
    """A signal asked this command to end; raised once everything is given back, to end by that very signal."""

    def __init__(self, signum: int, *, group: bool = False) -> None:
        """`group` passes the signal on to the whole process group, as the terminal would have."""
        super().__init__(signum)
        self.signum, self.group = signum, group
