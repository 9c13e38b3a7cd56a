"""Fences for objects in S3, and in stores that keep its promises: conditional writes.

    fence = S3Fence(boto3.client("s3"), "a-bucket")
    fence.put("account/42", lease, b"100")
    assert fence.get("account/42", lease) == b"100"

A write puts the new version with ``If-Match`` on the ETag that it read, or ``If-None-Match: *`` if there is no object.

An ETag speaks of the body alone, not of metadata. Were the token kept in metadata, two holders that write the same
bytes would leave the same ETag, and the earlier one could not see that the later one was there. So the floor is a line
at the head of the body, and the rest is yours: `payload_of` takes it from what others have read. An object whose ETag
is the same is then the same object, floor included.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from leasehold.errors import Misuse, quoted
from leasehold.fences.aws import Answer, Request, ask, ask_async, check_client
from leasehold.fences.objects import NOTHING, AsyncObjectFence, BlockingObjectFence, Found, ObjectFence
from leasehold.fences.rule import DAY, NEVER, Claim, Rule
from leasehold.fences.steps import drive, drive_async

T = TypeVar("T")
Steps = Generator[Request, Answer, T]

_HEAD = re.compile(rb"leasehold-fence 1 (-1|[0-9]{1,19}) (-1|[0-9]{1,19}) (kept|deleted)\n")
_LONGEST_HEAD = 128
_MISSING = frozenset({"NoSuchKey", "404"})
_EMPTY = frozenset({"InvalidRange", "416"})
_OVERTAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_KEPT = (
    *("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Expires"),
    *("Metadata", "WebsiteRedirectLocation", "StorageClass"),
    *("ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled"),
)
"""What goes along with the payload when only its floor is raised, besides its tags."""
_OURS = frozenset({"Bucket", "Key", "Body", "IfMatch", "IfNoneMatch"})


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


class _Fence(ObjectFence):
    """What the blocking and the asyncio fence share: everything but the waiting."""

    _ASYNC: bool

    def __init__(self, client: Any, bucket: str, *, adopt: bool = False, jump_limit: int = DAY) -> None:
        """Nothing is sent yet. With `adopt`, objects that have no floor yet are taken for ones that nobody has touched.

        Without it they are refused, since their bytes would look like an object without a head to those who use it.
        """
        check_client(client, "put_object", of="S3", asyncio=self._ASYNC, fence="S3Fence")
        self._client, self._bucket, self._adopt, self._rule = client, bucket, adopt, Rule(jump_limit)

    def _find(self, key: str, *, whole: bool) -> Steps[Found]:
        arguments = {"Bucket": self._bucket, "Key": key}
        if not whole:
            arguments["Range"] = f"bytes=0-{_LONGEST_HEAD - 1}"
        answer = yield Request("get_object", arguments, _MISSING | _EMPTY)
        if answer.code in _MISSING:
            return NOTHING
        if answer.code in _EMPTY:  # a part of nothing cannot be had
            return (yield from self._find(key, whole=True))
        body, etag = answer.fields["Body"], answer.fields["ETag"]
        head = _HEAD.match(body)
        if head is not None:
            return Found(int(head[1]), int(head[2]), head[3] == b"deleted", etag, answer.fields, body[head.end() :])
        if self._adopt:
            return Found(NEVER, NEVER, False, etag, answer.fields, body)
        raise Misuse(f"object {quoted(key)} was not written behind a fence; S3Fence(…, adopt=True) takes it over")

    def _put(
        self, key: str, found: Found, claim: Claim, payload: bytes | None, settings: Mapping[str, Any]
    ) -> Steps[bool]:
        wrong = _OURS & set(settings)
        if wrong:
            raise Misuse(f"{min(wrong)} is set by the fence; `settings` are further parameters, such as ContentType")
        body = _framed(claim.token, max(found.written, claim.mark), payload)
        return (yield from self._replace(key, found, body, settings))

    def _mark(self, key: str, found: Found, seen: int) -> Steps[bool]:
        kept = {name: found.fields[name] for name in _KEPT if found.fields.get(name)}
        if found.fields.get("TagCount"):
            tags = yield Request("get_object_tagging", {"Bucket": self._bucket, "Key": key}, _MISSING)
            if tags.code is not None:
                return False
            kept["Tagging"] = urlencode([(tag["Key"], tag["Value"]) for tag in tags.fields["TagSet"]])
        body = _framed(seen, found.written, None if found.deleted else found.body)
        return (yield from self._replace(key, found, body, kept))

    def _replace(self, key: str, found: Found, body: bytes, settings: Mapping[str, Any]) -> Steps[bool]:
        condition = {"IfNoneMatch": "*"} if found.version is None else {"IfMatch": found.version}
        arguments = {**settings, "Bucket": self._bucket, "Key": key, "Body": body, **condition}
        # With If-Match, an object that somebody has removed altogether is answered as missing.
        return (yield Request("put_object", arguments, _OVERTAKEN | _MISSING)).code is None


class S3Fence(_Fence, BlockingObjectFence):
    """Checks tokens in conditional writes, by a client of boto3, which threads may share.

    A resource is an object's key. Every method takes it and then the token, or what carries it; `settings` are further
    parameters of ``put_object``, such as ``ContentType``. A repetition by the client itself is harmless: the same
    holder may put the same bytes twice. To announce a token, the object is read and put once more, unless that token
    was here already: with its headers, metadata, storage class, encryption and tags, but without an ACL or a lock.
    """

    _ASYNC = False

    def _do(self, steps: Steps[T]) -> T:
        return drive(steps, lambda request: ask(self._client, request))


class AsyncS3Fence(_Fence, AsyncObjectFence):
    """The same as `S3Fence`, for a client of aiobotocore."""

    _ASYNC = True

    async def _do(self, steps: Steps[T]) -> T:
        return await drive_async(steps, lambda request: ask_async(self._client, request))
