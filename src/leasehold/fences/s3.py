"""Fences for objects in S3, and in stores that keep its promises: conditional writes.

    fence = S3Fence(boto3.client("s3"), "a-bucket")
    fence.put("account/42", lease, b"100")
    assert fence.get("account/42", lease) == b"100"

A write reads which tokens the object has seen, judges, and then puts the new version with ``If-Match`` on the ETag that
it read (``If-None-Match: *`` if there is no object): when anybody else was there meanwhile, the store refuses, and it
reads again.

An ETag speaks of the body alone, not of metadata. Were the token kept in metadata, two holders that write the same
bytes would leave the same ETag, and the earlier one could not see that the later one was there. So the floor is a line
at the head of the body, and the rest is yours: `payload_of` takes it from what others have read. An object whose ETag
is the same is then the same object, floor included.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from leasehold.errors import Misuse, VersionConflict, quoted
from leasehold.fences.aws import Answer, Request, ask, ask_async, check_client
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.fences.steps import drive, drive_async
from leasehold.fences.store import AsyncStoreFence, BlockingStoreFence, StoreFence

T = TypeVar("T")
Steps = Generator[Request, Answer, T]

_HEAD = re.compile(rb"leasehold-fence 1 (-1|[0-9]{1,19}) (-1|[0-9]{1,19}) (kept|deleted)\n")
_LONGEST_HEAD = 128
_MISSING = frozenset({"NoSuchKey", "404"})
_EMPTY = frozenset({"InvalidRange", "416"})
_OVERTAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_KEPT = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Metadata")
"""What goes along with the payload when only its floor is raised."""
_OURS = frozenset({"Bucket", "Key", "Body", "IfMatch", "IfNoneMatch"})
_MOST_ROUNDS = 100
"""Each round that fails is one in which another's was carried out."""


class _Found(NamedTuple):
    """An object as it was read."""

    seen: int
    written: int
    deleted: bool
    etag: str | None
    """None: there is no object."""
    fields: Mapping[str, Any]
    body: bytes
    """What comes after the head; only its beginning, if no more was asked for."""


def payload_of(body: bytes) -> bytes | None:
    r"""Take your bytes from the body of an object that a fence wrote; None when it was deleted behind the fence.

    >>> payload_of(b"leasehold-fence 1 34 34 kept\nhello")
    b'hello'
    """
    head = _HEAD.match(body)
    if head is None:
        raise Misuse("this object was not written behind a fence; put() it once more, with the fence")
    return None if head[3] == b"deleted" else body[head.end() :]


def _framed(seen: int, written: int, payload: bytes | None) -> bytes:
    state = "deleted" if payload is None else "kept"
    return f"leasehold-fence 1 {seen} {written} {state}\n".encode() + (payload or b"")


class _Fence(StoreFence):
    """What the blocking and the asyncio fence share: everything but the waiting."""

    _ASYNC: bool

    def __init__(self, client: Any, bucket: str, *, adopt: bool = False, jump_limit: int = DAY) -> None:
        """Nothing is sent yet. With `adopt`, objects that have no floor yet are taken for ones that nobody has touched.

        Without it they are refused, since their bytes would look like an object without a head to those who use it.
        """
        check_client(client, "put_object", of="S3", asyncio=self._ASYNC, fence="S3Fence")
        self._client, self._bucket, self._adopt, self._rule = client, bucket, adopt, Rule(jump_limit)

    def _read(self, key: str, *, whole: bool) -> Steps[_Found]:
        arguments = {"Bucket": self._bucket, "Key": key}
        if not whole:
            arguments["Range"] = f"bytes=0-{_LONGEST_HEAD - 1}"
        answer = yield Request("get_object", arguments, _MISSING | _EMPTY)
        if answer.code in _MISSING:
            return _Found(NEVER, NEVER, True, None, {}, b"")
        if answer.code in _EMPTY:  # a part of nothing cannot be had
            return (yield from self._read(key, whole=True))
        body, etag = answer.fields["Body"], answer.fields["ETag"]
        head = _HEAD.match(body)
        if head is not None:
            return _Found(int(head[1]), int(head[2]), head[3] == b"deleted", etag, answer.fields, body[head.end() :])
        if self._adopt:
            return _Found(NEVER, NEVER, False, etag, answer.fields, body)
        raise Misuse(f"object {quoted(key)} was not written behind a fence; S3Fence(…, adopt=True) takes it over")

    def _put(self, key: str, found: _Found, body: bytes, settings: Mapping[str, Any]) -> Steps[bool]:
        """Whether it was put: not if the object is another one by now."""
        condition = {"IfNoneMatch": "*"} if found.etag is None else {"IfMatch": found.etag}
        arguments = {**settings, "Bucket": self._bucket, "Key": key, "Body": body, **condition}
        # With If-Match, an object that somebody has removed altogether is answered as missing.
        return (yield Request("put_object", arguments, _OVERTAKEN | _MISSING)).code is None

    def _write(self, claim: Claim, payload: bytes | None, settings: Mapping[str, Any] | None) -> Steps[bool]:
        """Put the payload, or a note that it is deleted; returns whether there was something before."""
        wrong = _OURS & set(settings or {})
        if wrong:
            raise Misuse(f"{min(wrong)} is set by the fence; `settings` are further parameters, such as ContentType")
        for _ in range(_MOST_ROUNDS):
            found = yield from self._read(claim.resource, whole=False)
            _refuse(claim, found)
            framed = _framed(claim.token, max(found.written, claim.mark), payload)
            if (yield from self._put(claim.resource, found, framed, settings or {})):
                return not found.deleted
        raise _never_quiet(claim)

    def _announce(self, claim: Claim) -> Steps[bytes | None]:
        """Raise the floor and leave the rest as it is; returns the payload, or None when there is none."""
        for _ in range(_MOST_ROUNDS):
            found = yield from self._read(claim.resource, whole=True)
            _refuse(claim, found)
            payload = None if found.deleted else found.body
            if found.seen == claim.token:
                return payload
            framed = _framed(claim.token, found.written, payload)
            kept = {name: found.fields[name] for name in _KEPT if found.fields.get(name)}
            if (yield from self._put(claim.resource, found, framed, kept)):
                return payload
        raise _never_quiet(claim)

    def _floor(self, key: str) -> Steps[int | None]:
        found = yield from self._read(self._claim(key, 0, writes=False, allow_jump=False).resource, whole=False)
        return None if found.seen == NEVER else found.seen


def _refuse(claim: Claim, found: _Found) -> None:
    refusal = claim.refusal(found.seen, found.written)
    if refusal is not None:
        raise refusal


def _never_quiet(claim: Claim) -> VersionConflict:
    return VersionConflict(f"others changed the object {quoted(claim.resource)} {_MOST_ROUNDS} times in a row")


class S3Fence(_Fence, BlockingStoreFence):
    """Checks tokens in conditional writes, by a client of boto3, which threads may share.

    A resource is an object's key. Every method takes it and then the token, or what carries it. A repetition by the
    client itself is harmless: the same holder may put the same bytes twice. To announce a token, the object is read and
    put once more, unless that token was here already.
    """

    _ASYNC = False

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
        """Put a new version; `settings` are further parameters of ``put_object``, such as ``ContentType``."""
        self._do(self._write(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), body, settings))

    def get(self, key: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return your bytes, or None; no earlier holder can write any more when it returns."""
        return self._do(self._announce(self._claim(key, token, writes=False, allow_jump=allow_jump)))

    def delete(self, key: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete your bytes, and return whether there were any. A small object stays, which keeps the floor."""
        return self._do(self._write(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), None, None))

    def _do(self, steps: Steps[T]) -> T:
        return drive(steps, lambda request: ask(self._client, request))


class AsyncS3Fence(_Fence, AsyncStoreFence):
    """The same as `S3Fence`, for a client of aiobotocore."""

    _ASYNC = True

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
        """Put a new version; `settings` are further parameters of ``put_object``, such as ``ContentType``."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        await self._do(self._write(claim, body, settings))

    async def get(self, key: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return your bytes, or None; no earlier holder can write any more when it returns."""
        return await self._do(self._announce(self._claim(key, token, writes=False, allow_jump=allow_jump)))

    async def delete(self, key: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete your bytes, and return whether there were any. A small object stays, which keeps the floor."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        return await self._do(self._write(claim, None, None))

    async def _do(self, steps: Steps[T]) -> T:
        return await drive_async(steps, lambda request: ask_async(self._client, request))
