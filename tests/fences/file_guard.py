"""A guard of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.fences.guards import Guard

from leasehold.fences import FileFence
from leasehold.names import HIGHEST_TOKEN


class FileGuard(Guard):
    def __init__(self, folder: str | Path, resource: str = "thing", *, patience: float = 0.2) -> None:
        super().__init__()
        self.folder, self.resource = Path(folder), resource
        self.fence = FileFence(folder, jump_limit=HIGHEST_TOKEN)

    def _another(self) -> Self:
        return type(self)(self.folder, self.resource)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        self.fence.write(self.resource, token, value.encode(), once=once)  # one call: there is no between

    def write_past(self, value: str) -> None:
        """Replace it as carefully as the fence does: synced, and its folder too."""
        new = self.folder / f"{self.resource}.new"
        with new.open("wb") as file:
            file.write(value.encode())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / self.resource)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def floor_size(self) -> int:
        return len([path for path in self.folder.iterdir() if self.resource in path.name])

    def read(self, token: int) -> str | None:
        found = self.fence.read(self.resource, token)
        return None if found is None else found.decode()

    def peek(self) -> str | None:
        path = self.folder / self.resource
        return path.read_text() if path.exists() else None

    def delete(self, token: int) -> None:
        self.fence.delete(self.resource, token)

    def announce(self, token: int) -> None:
        self.fence.announce(self.resource, token)

    def raise_floor(self, token: int) -> None:
        self.fence.raise_floor(self.resource, token)

    def floor(self) -> int | None:
        return self.fence.floor(self.resource)

    def _close(self) -> None:
        """Nothing is open."""
