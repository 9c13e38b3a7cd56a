"""A guard of a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.fences.guards import Guard

from leasehold.fences import AsyncFileFence, FileFence
from leasehold.names import HIGHEST_TOKEN


class FileGuard(Guard):
    def __init__(
        self, folder: str | Path, resource: str = "thing", *, patience: float = 0.2, in_asyncio: bool = False
    ) -> None:
        super().__init__()
        self.folder, self.resource, self.in_asyncio = Path(folder), resource, in_asyncio
        self._runner = asyncio.Runner() if in_asyncio else None
        self.fence: Any = (AsyncFileFence if in_asyncio else FileFence)(folder, jump_limit=HIGHEST_TOKEN)

    def run(self, result: Any) -> Any:
        """What has to be awaited is, in an event loop of its own."""
        return result if self._runner is None else self._runner.run(result)

    def _another(self) -> Self:
        return type(self)(self.folder, self.resource, in_asyncio=self.in_asyncio)

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        self.run(self.fence.write(self.resource, token, value.encode(), once=once))  # one call: there is no between

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
        return len(list(self.folder.iterdir()))

    def read(self, token: int) -> str | None:
        found = self.run(self.fence.read(self.resource, token))
        return None if found is None else found.decode()

    def peek(self) -> str | None:
        path = self.folder / self.resource
        return path.read_text() if path.exists() else None

    def delete(self, token: int) -> None:
        self.run(self.fence.delete(self.resource, token))

    def announce(self, token: int) -> None:
        self.run(self.fence.announce(self.resource, token))

    def raise_floor(self, token: int) -> None:
        self.run(self.fence.raise_floor(self.resource, token))

    def floor(self) -> int | None:
        found: int | None = self.run(self.fence.floor(self.resource))
        return found

    def _close(self) -> None:
        if self._runner is not None:
            self._runner.close()
