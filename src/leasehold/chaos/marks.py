"""What each worker is at, in a small file that all processes of a run map into memory.

The run reads it to aim its faults: a worker that was frozen or killed cannot answer a question, but what it last noted
is still there. The run notes in it, too, that somebody is to go on holding, and that all are to stop.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final, get_args

from leasehold.chaos.site import Doing

_DOING: Final[tuple[Doing, ...]] = get_args(Doing)
_ENTRY: Final = struct.Struct("=Q")
_HEADER: Final = 8
_SIZE: Final = 16
"""Of the entry of one worker: its doing; at 1 whether it is to hold on; at 8 how often it was granted what it asked
for."""


class Marks:
    """The file. Each worker writes its own entry only; the run writes what it tells them."""

    def __init__(self, path: Path, workers: int) -> None:
        """Open it, and make it first if it is not there."""
        size = _HEADER + _SIZE * workers
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()

    @property
    def stopping(self) -> bool:
        """Whether the workers are to end."""
        return self._memory[0] == 1

    def stop(self) -> None:
        """Tell the workers to end."""
        self._memory[0] = 1

    def note(self, worker: int, doing: Doing) -> None:
        """Say what a worker is at."""
        self._memory[_HEADER + _SIZE * worker] = _DOING.index(doing)

    def doing(self, worker: int) -> Doing:
        """What a worker is at."""
        return _DOING[self._memory[_HEADER + _SIZE * worker]]

    def tell_to_hold_on(self, worker: int, on: bool) -> None:
        """Tell a worker to go on holding, or no longer."""
        self._memory[_HEADER + _SIZE * worker + 1] = on

    def holds_on(self, worker: int) -> bool:
        """Whether a worker was told to go on holding."""
        return self._memory[_HEADER + _SIZE * worker + 1] == 1

    def count_grant(self, worker: int) -> None:
        """One more."""
        _ENTRY.pack_into(self._memory, _HEADER + _SIZE * worker + 8, self.grants(worker) + 1)

    def grants(self, worker: int) -> int:
        """How often a worker was granted what it asked for."""
        (count,) = _ENTRY.unpack_from(self._memory, _HEADER + _SIZE * worker + 8)
        return int(count)
