"""How a name, its holders and its waiters look in ZooKeeper: the nodes, and who comes before whom.

Every attempt has a node of its own, ``<chroot>/leasehold/<namespace>/<name>/<kind>-<id>-<number>``. The number comes
from ZooKeeper and is the attempt's place in the queue; the transaction that created the node is its token. The id is
how an attempt recognises its node when the answer to its creation was lost.

A node that was moved to another session, with its place and its token kept, is called
``<kind>-<id>-<token>-<number>``.

>>> node_in("e-0123456789abcdef-0000000007")
Node(name='e-0123456789abcdef-0000000007', mode='exclusive', number=7, token=None)
>>> node_in("e-0123456789abcdef-1f-0000000007").token, node_in("e-0123456789abcdef-1f-0000000007").id
(31, '0123456789abcdef')
>>> encoded("a/b"), encoded(".."), encoded("")
('a%2Fb', '%2E%2E', '%')
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from leasehold.core.engine import HolderStatus, Mode, NameStatus, WaiterStatus
from leasehold.engines.about import About
from leasehold.engines.line import Line

FOLDER: Final = "leasehold"
_KINDS: Final[dict[str, Mode]] = {"e": "exclusive", "s": "shared", "p": "permit"}
_LETTERS: Final[dict[Mode, str]] = {mode: letter for letter, mode in _KINDS.items()}
LENGTH_OF_ID: Final = 16
_NODE: Final = re.compile(r"([esp])-[0-9a-f]{16}-(?:([0-9a-f]{1,16})-)?(-?[0-9]{10,11})", re.ASCII)
LAST_NUMBER: Final = 2**31 - 1
"""ZooKeeper gives this one to everybody who comes after it."""


@functools.lru_cache(maxsize=1024)
def encoded(text: str) -> str:
    """A namespace or a name as one part of a path."""
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return quote(text, safe="") or "%"


@functools.lru_cache(maxsize=1024)
def folder(space: str, name: str) -> str:
    """Where the nodes of a name are; the same text for all who wait for it."""
    return f"{space}/{encoded(name)}"


def decoded(part: str) -> str | None:
    """The text that a part of a path stands for; None when it is not one of ours."""
    text = "" if part == "%" else unquote(part, errors="replace")
    return text if encoded(text) == part else None


class Node(NamedTuple):
    """One attempt, as its node's name tells of it."""

    name: str
    mode: Mode
    number: int
    token: int | None
    """Its token, if the name tells it; else the node's own first transaction is the token."""

    @property
    def id(self) -> str:
        """How the attempt recognises it."""
        return self.name[2 : 2 + LENGTH_OF_ID]


@functools.lru_cache(maxsize=1024)
def node_in(name: str) -> Node | None:
    """Read a node's name; None when it is not one of ours."""
    match = _NODE.fullmatch(name)
    if match is None:
        return None
    kind, token, number = match.groups()
    return Node(name, _KINDS[kind], int(number), None if token is None else int(token, 16))


def beginning(mode: Mode, attempt: str) -> str:
    """How the name of a new node begins; ZooKeeper adds its number."""
    return f"{_LETTERS[mode]}-{attempt}-"


def moved(node: Node, token: int) -> str:
    """The name of a node that takes the place of another one, on another session."""
    return f"{beginning(node.mode, node.id)}{token:x}-{node.number:010d}"


def queue_in(names: Iterable[str]) -> list[Node]:
    """The attempts among these names, in the order of the queue. Those with the last number have no order yet."""
    return sorted((node for node in map(node_in, names) if node is not None), key=lambda node: node.number)


class Blockade(NamedTuple):
    """Why an attempt must wait: until so few of these nodes are left."""

    name: str
    """That of the only one, but for permits: of thousands who wait for one each, no more is kept."""
    may_stay: int
    is_all: bool
    """Whether nothing else will be in the way then."""
    is_next_to: bool = False
    """Whether it is one node, and nobody stands between it and the attempt."""
    more: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Those of all of them."""
        return (self.name, *self.more) if self.name else ()

    def without(self, name: str) -> Blockade:
        """What is left of it when this node is gone."""
        left = tuple(one for one in self.names if one != name)
        return self._replace(name=left[0] if left else "", more=left[1:])

    def after(self, token: int) -> Blockade | None:
        """What is in the way when the one node is gone, if it is gone because its turn had come; None: look and see.

        `token` is that of the node. It may as well have given up: so what it would have moved to has to be seen.
        """
        node = node_in(self.name)
        if self.is_all or not self.is_next_to or node is None or node.token is not None:
            return None
        return self._replace(name=moved(node, token))

    def seen(self) -> Blockade:
        """The one node is there. Who wants a name for itself alone moves up only when nobody is before it any more."""
        node = node_in(self.name)
        moved_up = node is not None and node.mode == "exclusive" and node.token is not None
        return self._replace(is_all=True) if self.is_next_to and moved_up and not self.is_all else self


def behind(ahead: Node, node: Node) -> Blockade:
    """An exclusive lease waits for another one before it. Numbers tell whether somebody came between the two."""
    is_next_to = 0 <= ahead.number == node.number - 1 < LAST_NUMBER - 1
    return Blockade(ahead.name, 0, is_all=False, is_next_to=is_next_to)


def blockade(mode: Mode, limit: int, before: Sequence[Node]) -> Blockade | None:
    """What stands between an attempt and the name, given those before it, oldest first; None: it holds the name.

    An exclusive lease waits for all before it, and so for the last of them; a shared one for the last that is not
    shared; a permit for all that are no permits, and then until fewer than `limit` are before it.
    """
    others = [one.name for one in before if mode == "exclusive" or one.mode != mode]
    if others and mode == "permit":
        return Blockade(others[0], 0, is_all=False, more=tuple(others[1:]))
    if others:
        is_next_to = others[-1] == before[-1].name
        return Blockade(others[-1], 0, is_all=len(others) == 1, is_next_to=is_next_to)
    if mode == "permit" and len(before) >= limit:
        return Blockade(before[0].name, limit - 1, is_all=True, more=tuple(one.name for one in before[1:]))
    return None


class Shown(NamedTuple):
    """A node with all that is known of it."""

    node: Node
    token: int
    about: About


def status_of(name: str, queue: Sequence[Shown], now: float) -> NameStatus | None:
    """A name as an operator sees it. How long a session has left ZooKeeper does not tell: the TTL is shown."""
    holders: list[HolderStatus] = []
    waiters: list[WaiterStatus] = []
    line = Line()
    for node, token, about in queue:
        since = max(now - about.since, 0.0)
        if line.lets_in(node.mode, about.limit):
            holders.append(HolderStatus(token, node.mode, about.about, since, about.ttl))
        else:
            waiters.append(WaiterStatus(node.mode, about.about, since, max(about.until - now, 0.0)))
    if not queue:
        return None
    return NameStatus(name, max((one.token for one in holders), default=0), tuple(holders), tuple(waiters))
