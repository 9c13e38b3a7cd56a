"""What is loaded into servers and workers so that their wall clock can be moved and their syncs be known (`shim.c`)."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("shim.c")
_NUMBER: Final = struct.Struct("=q")


def unavailable() -> str | None:
    """Why there is no shim on this machine; None when there is one."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return "the wall clock of a single process can only be moved on 64-bit Linux"
    if not shutil.which("cc"):
        return "moving the wall clock of a single process takes a C compiler (cc), and there is none on PATH"
    return None


def built(folder: Path) -> Path:
    """The shim, compiled into this folder unless it is there already."""
    library = folder / "leasehold-shim.so"
    if not library.exists():
        made = library.with_suffix(".new")
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(made), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"cc could not compile {SOURCE.name}: {done.stderr[-500:]}")
        made.rename(library)
    return library


class MovedClock:
    """The wall clock of the processes that are started with its environment."""

    def __init__(self, folder: Path, name: str) -> None:
        """Keep the shim and the clock's offset in this folder."""
        path = folder / f"{name}.clock"
        path.write_bytes(_NUMBER.pack(0))
        path.chmod(0o644)
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), _NUMBER.size)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(built(folder)), "LEASEHOLD_CLOCK": str(path)}

    def move(self, seconds: float) -> None:
        """Let it show the time of the machine plus so many seconds, from now on."""
        self._offset[:] = _NUMBER.pack(round(seconds * 1_000_000))


def clock(folder: Path, name: str) -> MovedClock | None:
    """A clock that can be moved, or None where there is no shim."""
    return None if unavailable() else MovedClock(folder, name)
