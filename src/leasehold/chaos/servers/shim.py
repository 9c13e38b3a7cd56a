"""What is loaded into servers and workers so that their clock can be moved (`shim.c`)."""

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
_ORDERS: Final = struct.Struct("=q")


def unavailable() -> str | None:
    """Why there is no shim on this machine; None when there is one."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return "only on 64-bit Linux can the clock of a single process be moved"
    if not shutil.which("cc"):
        return "to move the clock of a single process takes a C compiler (cc), and there is none on PATH"
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


class Shim:
    """The wall clock of the processes that are started with its environment."""

    def __init__(self, folder: Path, name: str) -> None:
        """Keep the library, and what it is told, in this folder."""
        path = folder / f"{name}.shim"
        path.write_bytes(_ORDERS.pack(0))
        path.chmod(0o644)
        with path.open("r+b") as file:
            self._orders = mmap.mmap(file.fileno(), _ORDERS.size)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(built(folder)), "LEASEHOLD_SHIM": str(path)}

    def move(self, seconds: float) -> None:
        """Let the wall clock show the time of the machine plus so many seconds, from now on."""
        _ORDERS.pack_into(self._orders, 0, round(seconds * 1_000_000))


def shim(folder: Path, name: str) -> Shim | None:
    """The shim for the processes of one kind, or None where there is none."""
    return None if unavailable() else Shim(folder, name)
