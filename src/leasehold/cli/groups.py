"""Process groups: sending a signal to all of one, and finding out whether anyone in it is still alive."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def send_to_group(group: int, signum: int) -> None:
    """Signal everyone in the group. Nobody there, or nobody that this user may signal, is no error."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return


def someone_lives_in(group: int, *, but: int | None = None) -> bool:
    """Whether the group has a member (other than `but`) that has not ended.

    A member that has ended but was not reaped, because its parent does not care, counts for the system. It does not
    count here, where the system can tell: in a container without an init process it would stay there for ever.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not sys.platform.startswith("linux"):
        return True
    return any(_lives_in(group, int(entry.name)) for entry in os.scandir("/proc") if _is_other(entry.name, but))


def _is_other(name: str, but: int | None) -> bool:
    return name.isdecimal() and int(name) != but


def _lives_in(group: int, pid: int) -> bool:
    try:
        # "pid (program) state parent group …", where the program's name may contain anything.
        state, _parent, its_group = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in (b"Z", b"X")
