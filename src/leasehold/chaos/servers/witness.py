"""Who sees each write to the files of a server, and each sync, and can undo or refuse what it sees (`witness.c`)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leasehold.chaos.site import Fullness

SOURCE: Final = Path(__file__).with_name("witness.c")
ANSWERS_WITHIN: Final = 60.0
_ACTIONS: Final = Path("/proc/sys/kernel/seccomp/actions_avail")


class NoWitness(Exception):
    """There can be no witness here; the message says why."""


def built(folder: Path) -> Path:
    """The witness, compiled into this folder unless it is there already; `NoWitness` where that cannot be."""
    program = folder / "leasehold-witness"
    if program.exists():
        return program
    if not sys.platform.startswith("linux") or not _ACTIONS.exists() or "user_notif" not in _ACTIONS.read_text():
        raise NoWitness("only Linux from version 5.5 on lets a process of the same user see the writes of another one")
    if not shutil.which("cc"):
        raise NoWitness("to see the writes of a server takes a C compiler (cc), and there is none on PATH")
    made = program.with_suffix(".new")
    done = subprocess.run(
        ["cc", "-O2", "-o", str(made), str(SOURCE)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise NoWitness(f"cc could not compile {SOURCE.name}: {done.stderr[-500:]}")
    made.rename(program)
    return program


class Witness:
    """Sees what commands write that are started through it, to some files."""

    def __init__(self, folder: Path, prefix: str) -> None:
        """Watch the files whose whole path begins like this; the witness itself is kept in `folder`."""
        self._program = built(folder)
        self.power_losses = 0
        self._orders, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(ANSWERS_WITHIN)
        command = [str(self._program), "keep", prefix]
        with its_end:
            self._process = subprocess.Popen(
                command, stdin=its_end.fileno(), stdout=subprocess.DEVNULL, process_group=0
            )
        try:
            self._try()
        except BaseException:
            self.close()
            raise

    def _try(self) -> None:
        done = subprocess.run(self.seen("true"), pass_fds=self.passed, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoWitness(f"the writes of a process cannot be seen here: {done.stderr.strip() or done.returncode}")

    def seen(self, *command: str) -> list[str]:
        """The command that does the same, and is seen; start it with the files of `passed`."""
        return [str(self._program), "run", str(self._orders.fileno()), *command]

    @property
    def passed(self) -> Sequence[int]:
        """What a process has to inherit that is to be seen."""
        return (self._orders.fileno(),)

    def fill(self, how: Fullness | None) -> None:
        """Let writes fail for want of room, or none any more, from now on."""
        self._tell(how or "room")

    def take_for_synced(self) -> None:
        """Take everything that was written so far for synced."""
        self._tell("synced")

    def drop_unsynced(self) -> int:
        """Undo all changes since the last sync of each file; by how many bytes. Only when nobody writes any more."""
        dropped = int(self._tell("drop"))
        if dropped < 0:
            raise RuntimeError("what was not synced could not be undone: the files cannot be written")
        self.power_losses += 1
        return dropped

    def _tell(self, word: str) -> str:
        self._orders.send(word.encode())
        said = self._orders.recv(64).decode()
        if not said or said == "unknown":
            raise RuntimeError(f"the witness was told {word!r} and did not understand, or is gone")
        return said

    def close(self) -> None:
        """End it. Who is still seen cannot write from then on."""
        self._orders.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
