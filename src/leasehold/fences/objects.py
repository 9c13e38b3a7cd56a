"""What fences of object stores share: S3, Google Cloud Storage.

A write reads which tokens the object has seen, judges, and then puts the new version on the condition that the object
is still the one that was read: when anybody else was there meanwhile, the store refuses, and it reads again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from leasehold.errors import VersionConflict, quoted
from leasehold.fences.rule import NEVER, Claim, HasToken
from leasehold.fences.store import AsyncStoreFence, BlockingStoreFence, Steps, StoreFence

_MOST_ROUNDS = 100
"""Each round that fails is one in which another's was carried out."""


class Found(NamedTuple):
    """An object as it was read."""

    seen: int
    written: int
    deleted: bool
    version: Any
    """What the store compares; None: there is no object."""
    fields: Mapping[str, Any]
    """What else the store keeps of it."""
    body: bytes
    """Only if it was asked for."""


NOTHING = Found(NEVER, NEVER, True, None, {}, b"")
"""Where there is no object."""


class ObjectFence(StoreFence):
    """The steps, in the words of one store."""

    @abstractmethod
    def _find(self, key: str, *, whole: bool) -> Steps[Found]:
        """Read the object, or only its marks."""

    @abstractmethod
    def _put(
        self, key: str, found: Found, claim: Claim, payload: bytes | None, settings: Mapping[str, Any]
    ) -> Steps[bool]:
        """Put a new version, or a note that it is deleted, unless the object is another one by now."""

    @abstractmethod
    def _mark(self, key: str, found: Found, seen: int) -> Steps[bool]:
        """Raise the floor and leave the rest as it is, unless the object is another one by now."""

    def _write(self, claim: Claim, payload: bytes | None, settings: Mapping[str, Any] | None) -> Steps[bool]:
        """Put the payload, or a note that it is deleted; returns whether there was something before."""
        for _ in range(_MOST_ROUNDS):
            found = yield from self._find(claim.resource, whole=False)
            _refuse(claim, found)
            if (yield from self._put(claim.resource, found, claim, payload, settings or {})):
                return not found.deleted
        raise _never_quiet(claim)

    def _announce(self, claim: Claim) -> Steps[bytes | None]:
        """Raise the floor and leave the rest as it is; returns the payload, or None when there is none."""
        for _ in range(_MOST_ROUNDS):
            found = yield from self._find(claim.resource, whole=True)
            _refuse(claim, found)
            if found.seen == claim.token or (yield from self._mark(claim.resource, found, claim.token)):
                return None if found.deleted else found.body
        raise _never_quiet(claim)

    def _floor(self, key: str) -> Steps[int | None]:
        found = yield from self._find(self._claim(key, 0, writes=False, allow_jump=False).resource, whole=False)
        return None if found.seen == NEVER else found.seen


def _refuse(claim: Claim, found: Found) -> None:
    refusal = claim.refusal(found.seen, found.written)
    if refusal is not None:
        raise refusal


def _never_quiet(claim: Claim) -> VersionConflict:
    return VersionConflict(f"others changed the object {quoted(claim.resource)} {_MOST_ROUNDS} times in a row")


class BlockingObjectFence(ObjectFence, BlockingStoreFence):
    """Goes through the steps in blocking code."""

    def put(
        self,
        key: str,
        token: int | HasToken,
        body: bytes,
        *,
        settings: Mapping[str, Any] | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Put a new version; `settings` is what else the store is told of it, in its own words."""
        self._do(self._write(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), body, settings))

    def get(self, key: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return your bytes, or None; no earlier holder can write any more when it returns."""
        return self._do(self._announce(self._claim(key, token, writes=False, allow_jump=allow_jump)))

    def delete(self, key: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete your bytes, and return whether there were any. A small object stays, which keeps the floor."""
        return self._do(self._write(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), None, None))


class AsyncObjectFence(ObjectFence, AsyncStoreFence):
    """Goes through the steps in async code."""

    async def put(
        self,
        key: str,
        token: int | HasToken,
        body: bytes,
        *,
        settings: Mapping[str, Any] | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Put a new version; `settings` is what else the store is told of it, in its own words."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        await self._do(self._write(claim, body, settings))

    async def get(self, key: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return your bytes, or None; no earlier holder can write any more when it returns."""
        return await self._do(self._announce(self._claim(key, token, writes=False, allow_jump=allow_jump)))

    async def delete(self, key: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete your bytes, and return whether there were any. A small object stays, which keeps the floor."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        return await self._do(self._write(claim, None, None))
