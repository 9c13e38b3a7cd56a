"""What all fences of a store have in common that is asked step by step: etcd, ZooKeeper, S3, DynamoDB."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, TypeVar

from leasehold.errors import StaleToken
from leasehold.fences.rule import Claim, HasToken, Rule

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class StoreFence(ABC):
    """The steps, in the words of one kind of store."""

    _rule: Rule

    def _claim(
        self, resource: str, token: int | HasToken, *, writes: bool, once: bool = False, allow_jump: bool
    ) -> Claim:
        return self._rule.claim(resource, token, writes=writes, once=once, allow_jump=allow_jump)

    @abstractmethod
    def _announce(self, claim: Claim) -> Steps[object]:
        """Raise the floor to the claim's token, or refuse it."""

    @abstractmethod
    def _floor(self, resource: str) -> Steps[int | None]:
        """Read the floor."""


class BlockingStoreFence(StoreFence):
    """Goes through the steps in blocking code."""

    @abstractmethod
    def _do(self, steps: Steps[T]) -> T:
        """Ask the store, step by step."""

    def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        self._do(self._announce(self._claim(resource, token, writes=False, allow_jump=allow_jump)))

    def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            self.announce(resource, token, allow_jump=allow_jump)

    def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return self._do(self._floor(resource))


class AsyncStoreFence(StoreFence):
    """Goes through the steps in async code."""

    @abstractmethod
    async def _do(self, steps: Steps[T]) -> T:
        """Ask the store, step by step."""

    async def announce(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Raise the floor to the token before the work starts, so that no earlier holder can write from now on."""
        await self._do(self._announce(self._claim(resource, token, writes=False, allow_jump=allow_jump)))

    async def raise_floor(self, resource: str, token: int | HasToken, *, allow_jump: bool = False) -> None:
        """Make sure that the floor is at least this token, whatever it is now. It never falls."""
        with contextlib.suppress(StaleToken):
            await self.announce(resource, token, allow_jump=allow_jump)

    async def floor(self, resource: str) -> int | None:
        """Return the highest token seen, or None. Tells people; decides nothing, since it may be higher by now."""
        return await self._do(self._floor(resource))
