"""Leases on several names that were taken together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from leasehold.lease import AsyncLease, Lease, LeaseView

L = TypeVar("L", bound=LeaseView)


class _Together(Generic[L]):
    """What can be asked of leases held together: they are lost as soon as one of them is."""

    def __init__(self, leases: Sequence[L]) -> None:
        self._leases = tuple(leases)

    def __iter__(self) -> Iterator[L]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __getitem__(self, name: str) -> L:
        for lease in self._leases:
            if lease.name == name:
                return lease
        raise KeyError(name)

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {lease.name: lease.token for lease in self._leases}

    @property
    def lost(self) -> bool:
        """Whether any of them may no longer be held."""
        return any(lease.lost for lease in self._leases)

    @property
    def remaining(self) -> float:
        """Seconds for which all of them may still be believed."""
        return min(lease.remaining for lease in self._leases)

    def check(self, need: float = 0.0) -> None:
        """Raise `LeaseLost` unless all of them may be believed."""
        for lease in self._leases:
            lease.check(need)

    def _drop(self, entry: str | None) -> None:
        for lease in self._leases:
            lease._drop(entry)


class Leases(_Together[Lease]):
    """Several leases of the blocking world."""

    def release(self) -> None:
        """Give all back, in the opposite order; each is released even when another fails."""
        with contextlib.ExitStack() as stack:
            for lease in self._leases:
                stack.callback(lease.release)

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(None, error)

    def _leave(self, _entry: str | None, error: BaseException | None) -> None:
        with contextlib.ExitStack() as stack:
            for lease in self._leases:
                stack.push(lease)
            if error is not None:
                raise error


class AsyncLeases(_Together[AsyncLease]):
    """Several leases of the asyncio world."""

    async def release(self) -> None:
        """Give all back, in the opposite order; each is released even when another fails."""
        async with contextlib.AsyncExitStack() as stack:
            for lease in self._leases:
                stack.push_async_callback(lease.release)

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(None, error)

    async def _leave(self, _entry: str | None, error: BaseException | None) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for lease in self._leases:
                stack.push_async_exit(lease)
            if error is not None:
                raise error
