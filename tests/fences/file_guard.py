"""A guard of a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.fences.guards import Guard

from leasehold.fences import FileFence
from leasehold.names import HIGHEST_TOKEN

_numbers = itertools.count()


class FileGuard(Guard):
    def __init__(self, folder: Path, resource: str = "thing", *, fresh: bool = False) -> None:
        super().__init__()
        self.folder, self.resource = folder, f"{resource}{next(_numbers)}" if fresh else resource
        self.fence = FileFence(folder, jump_limit=HIGHEST_TOKEN)

    def _another(self) -> Self:
        return type(self)(self.folder, self.resource)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        self.fence.write(self.resource, token, value.encode(), once=once)  # one call: there is no between

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
