"""How a name, its holders and its waiters look as keys of etcd and Consul, and who comes before whom.

Every attempt has a key of its own, ``leasehold/<namespace>/<name>/<kind>/<session>.<slot>``. Two attempts of one client
so exclude each other like those of strangers. The revision at which a key was created is its place in the queue, and
its token. Whoever has nobody before it that it must wait for, holds the name.

A slot is used again by later attempts. A fresh key for each would be simpler; but etcd remembers every deleted key
until it is compacted, and looking at a busy name would soon mean wading through thousands of them.

>>> keys_of("shop", "a/b").slot("exclusive", "7f.0")
b'leasehold/shop/a%2Fb/e/7f.0'
>>> name_in(b"leasehold/shop/a%2Fb/e/7f.0", "shop")
'a/b'
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote

from leasehold.core.engine import HolderStatus, Mode, NameStatus, WaiterStatus
from leasehold.engines.about import about_in
from leasehold.engines.line import Line

PREFIX: Final = b"leasehold/"
_KINDS: Final[dict[Mode, bytes]] = {"exclusive": b"e/", "permit": b"p/", "shared": b"s/"}
"""In this order those that a shared lease waits for stand side by side."""
_AFTER_SLASH: Final = b"0"
"""The character that follows the slash: where a range of keys below a slash ends."""


class Key(Protocol):
    """A key as it is stored: of etcd, or of another system that has keys, sessions and one counter of changes."""

    @property
    def key(self) -> bytes:
        """What it is called."""
        ...

    @property
    def created(self) -> int:
        """When it was created, on the counter."""
        ...

    @property
    def lease(self) -> Any:
        """The session that it hangs on."""
        ...

    @property
    def value(self) -> bytes:
        """What it says to people."""
        ...


KeyT = TypeVar("KeyT", bound=Key)


def _encoded(text: str) -> bytes:
    return quote(text, safe="").encode()


def namespace_range(namespace: str) -> tuple[bytes, bytes]:
    """All keys of a namespace."""
    start = PREFIX + _encoded(namespace)
    return start + b"/", start + _AFTER_SLASH


class NameKeys:
    """The keys of one name."""

    __slots__ = ("_base",)

    def __init__(self, base: bytes) -> None:
        """`base` is the beginning that they share, without its last slash."""
        self._base = base

    def slot(self, mode: Mode, slot: str) -> bytes:
        """The key of one slot, or with no slot, how all keys of this kind begin."""
        return self._base + b"/" + _KINDS[mode] + slot.encode()

    @property
    def all(self) -> tuple[bytes, bytes]:
        """The range of all of them."""
        return self._base + b"/", self._base + _AFTER_SLASH

    def in_the_way_of(self, mode: Mode) -> tuple[bytes, bytes]:
        """The range of those that an attempt may have to wait for."""
        if mode != "shared":
            return self.all
        return self._base + b"/" + _KINDS["exclusive"], self._base + b"/" + _KINDS["permit"][:-1] + _AFTER_SLASH


@functools.lru_cache(maxsize=1024)
def keys_of(namespace: str, name: str) -> NameKeys:
    """The keys of one name."""
    return NameKeys(namespace_range(namespace)[0] + _encoded(name))


def name_in(key: bytes, namespace: str) -> str | None:
    """The name that a key belongs to; None when it is no key of this namespace."""
    start = namespace_range(namespace)[0]
    name, _, rest = key[len(start) :].partition(b"/")
    if not key.startswith(start) or rest[:2] not in _KINDS.values():
        return None
    text = unquote(name.decode("ascii", "replace"), errors="replace")
    return text if _encoded(text) == name else None


def mode_of(key: bytes) -> Mode | None:
    """What kind of lease a key is for; None when it is not one of ours."""
    parts = key.rsplit(b"/", 2)
    return next((mode for mode, kind in _KINDS.items() if len(parts) == 3 and parts[1] + b"/" == kind), None)


class Blockade(NamedTuple):
    """Why an attempt must wait: until so few of these keys are left."""

    keys: frozenset[bytes]
    may_stay: int


def blockade(mode: Mode, limit: int, before: Sequence[Key]) -> Blockade | None:
    """What stands between an attempt and the name, given the keys before it, oldest first; None: it holds the name.

    An exclusive lease waits for all before it, and so for the last of them; a shared one for the last that is not
    shared; a permit for all that are no permits, and then until fewer than `limit` are before it.
    """
    others = [one.key for one in before if mode == "exclusive" or mode_of(one.key) != mode]
    if others:
        return Blockade(frozenset(others if mode == "permit" else others[-1:]), 0)
    if mode == "permit" and len(before) >= limit:
        return Blockade(frozenset(one.key for one in before), limit - 1)
    return None


def standing(found: Sequence[KeyT]) -> tuple[list[KeyT], list[KeyT]]:
    """Who of a name's keys, oldest first, holds it and who waits."""
    holding: list[KeyT] = []
    waiting: list[KeyT] = []
    line = Line()
    for key in found:
        mode = mode_of(key.key)
        held = line.lets_in(mode, about_in(key.value).limit)
        if mode is not None:
            (holding if held else waiting).append(key)
    return holding, waiting


def status_of(
    name: str, holding: Sequence[Key], waiting: Sequence[Key], left: Mapping[Any, float], now: float
) -> NameStatus:
    """A name as an operator sees it; `left` has the seconds that sessions still have, where they were asked for."""
    holders = tuple(
        HolderStatus(
            one.created,
            mode_of(one.key) or "exclusive",
            about.about,
            max(now - about.since, 0.0),
            left.get(one.lease, about.ttl),
        )
        for one, about in ((one, about_in(one.value)) for one in holding)
    )
    waiters = tuple(
        WaiterStatus(
            mode_of(one.key) or "exclusive", about.about, max(now - about.since, 0.0), max(about.until - now, 0.0)
        )
        for one, about in ((one, about_in(one.value)) for one in waiting)
    )
    return NameStatus(name, max((one.created for one in holding), default=0), holders, waiters)


class Slots:
    """Numbers from 0 on, of which the lowest that is free is given out. Who uses one remembers it."""

    __slots__ = ("_free", "_fresh")

    def __init__(self) -> None:
        self._fresh = 0
        """All from here on are free."""
        self._free: list[int] = []
        """Those below that are free again, as a heap."""

    def take(self) -> int:
        """The lowest that is free."""
        if self._free:
            return heapq.heappop(self._free)
        self._fresh += 1
        return self._fresh - 1

    def give_back(self, slot: int) -> None:
        """It is free again."""
        heapq.heappush(self._free, slot)

    @property
    def in_use(self) -> int:
        """How many."""
        return self._fresh - len(self._free)
