"""What is kept for one idempotency key, and what a store must be able to do with it, each in one atomic step."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Final, Literal, NamedTuple, Protocol

from leasehold.errors import Misuse, quoted

State = Literal["running", "done", "failed", "quarantined", "released"]
LARGEST_RESULT: Final = 64 * 1024
"""The default for how many bytes of a result are kept."""


class Claim(NamedTuple):
    """Somebody wants to run the operation of a key."""

    scope: str
    key: str
    fingerprint: str
    """Of the payload; empty: not to be compared."""
    run: str
    """A nonce: by it a claim is recognised whose answer was lost."""
    lease: float
    """After so many seconds without a word the run is taken for crashed."""
    keep: float
    """For how many seconds the record is kept after the last word of its run: a sign of life, or the result."""

    @property
    def id(self) -> str:
        """One text of a fixed form for any scope and key: no two pairs share it, and no collation can confuse it."""
        return hashlib.sha256(f"{len(self.scope)}:{self.scope}:{self.key}".encode()).hexdigest()


class Record(NamedTuple):
    """What the store has, after a claim."""

    state: State
    run: str
    token: int
    fingerprint: str
    left: float
    """Seconds for which the run that is under way is still taken for alive; 0 or less: it is taken for crashed."""
    point: str
    """The last recovery point that was reached, and what it left for those who go on from there."""
    data: str
    result: str


class Change(NamedTuple):
    """What the owner of a claim may do to its record."""

    state: State
    lease: float = 0.0
    point: str | None = None
    data: str | None = None
    result: str = ""


class Store(Protocol):
    """Where the records are. In the blocking world its coroutines never suspend."""

    async def claim(self, claim: Claim) -> Record:
        """Claim the key if nobody has it, or if who had it is gone; its record, whoever's it is now.

        A claim that succeeds has a token above that of every earlier claim of this key.
        """
        ...

    async def change(self, claim: Claim, token: int, change: Change) -> bool:
        """Change the record if this token still has it; False, and nothing is done, if it does not."""
        ...

    async def forget(self, claim: Claim) -> bool:
        """Let the operation run again unless it is under way; whether there was something to forget."""
        ...

    async def sweep(self, most: int) -> int:
        """Forget records that are to be kept no longer, at most so many; how many were forgotten."""
        ...

    async def now(self) -> float:
        """The store's own clock, in seconds since 1970."""
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep in this world."""
        ...


def fingerprint_of(payload: object) -> str:
    """A digest that differs when the payload does; empty for None.

    >>> fingerprint_of({"amount": 10, "to": "x"}) == fingerprint_of({"to": "x", "amount": 10})
    True
    """
    if payload is None:
        return ""
    data = (
        b"bytes:" + payload
        if isinstance(payload, bytes)
        else b"json:" + _json(payload, "payload", ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
    )
    return hashlib.sha256(data).hexdigest()


def packed(result: object, most: int) -> str:
    """A result as text: JSON, or bytes in base64. Never anything that could run when it is read.

    It is ASCII, so that every store can take it: an operation must not be carried out again for want of a character.
    """
    if isinstance(result, (bytes, bytearray)):
        text = "b" + base64.b64encode(result).decode()
    else:
        text = "j" + _json(result, "result")
    if len(text) - 1 > most:
        raise Misuse(
            f"the result has {len(text) - 1} bytes and at most {most} are kept; "
            "store it elsewhere and return where it is, or raise largest_result"
        )
    return text


def unpacked(text: str) -> Any:
    """The result again."""
    return base64.b64decode(text[1:]) if text[:1] == "b" else json.loads(text[1:] or "null")


def _json(value: object, what: str, *, ensure_ascii: bool = True, sort_keys: bool = False) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=ensure_ascii, separators=(",", ":"), sort_keys=sort_keys)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(f"the {what} is neither bytes nor JSON: {quoted(str(error))}") from None
