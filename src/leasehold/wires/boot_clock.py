"""The clock that every process of this host shares: microseconds since boot, and which boot that was.

Nobody can set it, and it goes on while the machine sleeps. It starts anew with each boot, so its readings only mean
something together with the name of the boot.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from leasehold.errors import NotSupported
from leasehold.worlds import boot_clock

PROC = Path("/proc")


class Clock(Protocol):
    """What the embedded engine may know of time. Tests have one that they can move."""

    @property
    def boot(self) -> str:
        """Which boot this is: another one whenever `now` may have started anew."""
        ...

    def now(self) -> int:
        """Microseconds since boot, suspended time included."""
        ...

    def stamp(self) -> int:
        """Microseconds since 1970. Anybody may set this clock; it only gives tokens their size."""
        ...


class SystemClock:
    """The host's own clock."""

    __slots__ = ("boot", "now")

    def __init__(self, boot: str, now: Callable[[], int]) -> None:
        self.boot, self.now = boot, now

    @staticmethod
    def stamp() -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000


@functools.cache
def system_clock() -> SystemClock:
    """Read, once in a process, which boot this is."""
    if sys.platform == "linux":
        boot, offset = linux_boot(PROC)
        read, boottime = time.clock_gettime_ns, time.CLOCK_BOOTTIME

        def now() -> int:
            return read(boottime) // 1000 - offset
    else:
        boot = _other_boot()

        def now() -> int:
            return int(boot_clock() * 1e6)

    return SystemClock(boot, now)


def linux_boot(proc: Path) -> tuple[str, int]:
    """The kernel's boot id, and by how many microseconds this process sees the boot clock shifted.

    A container may live in a time namespace of its own, where the clock since boot is shifted. With the shift taken
    away, all containers of a host read the same clock, and exclude each other.
    """
    boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespaces = proc / "self/ns"
    try:
        mine, for_children = ((namespaces / name).readlink() for name in ("time", "time_for_children"))
        offsets = (proc / "self/timens_offsets").read_text(encoding="ascii")
    except FileNotFoundError:  # the kernel has no time namespaces
        return boot, 0
    if mine != for_children:
        # The offsets that can be read are those of the children. Being another boot is the safe thing to say.
        return f"{boot} {mine}", 0
    for line in offsets.splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock in ("boottime", "7"):  # named, or numbered on older kernels
            return boot, int(seconds) * 1_000_000 + int(nanoseconds) // 1000
    return boot, 0


def _other_boot() -> str:
    if sys.platform == "darwin":
        import ctypes

        text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0) == 0:
            return text.value.decode("ascii")
    if sys.platform == "win32":
        import winreg

        key = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
            return str(winreg.QueryValueEx(opened, "BootId")[0])
    raise NotSupported(
        f"the embedded engine cannot tell one boot of {sys.platform} from the next, so a lease could outlive its "
        "holder; use an engine with a server, such as redis://"
    )
