"""Several servers at once for threads: one thread, sockets that never block, and one look at all of them.

A thread uses one bundle of connections at a time, one to each server. A slow server's replies are skipped when they
come, and one that cannot be reached is tried again now and then, without anybody waiting for it. The answers of a
majority that is near are looked for before the thread sleeps, as one server's are.
"""

from __future__ import annotations

import math
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from leasehold.core.quorum import AskGrant, Outcome, Request, majority_of
from leasehold.errors import EngineError
from leasehold.wires.lookout import Lookout
from leasehold.wires.quorum import (
    AFTER_FIRST_WAKE,
    GRACE,
    Codec,
    Message,
    Quorum,
    is_a_farewell,
    message_for,
    message_for_all,
    plain_message,
)
from leasehold.wires.quorum_member import CLOSED, LOOKING_UP, READY, Member
from leasehold.wires.redis_replies import unreachable
from leasehold.worlds import BlockingWorld

MOST_IDLE_BUNDLES = 32
TRUSTED = 0.005
"""For how long after its last use a bundle's connections are believed to be open."""
LOOK_UP_TICK = 0.005
LONGEST_POLL = 3600.0

Enough = Callable[[list[Any]], bool]
NOTHING = plain_message(b"", plain=True)


class Gathering:
    """A request on its way to several servers, and what is known of each."""

    __slots__ = ("_meant", "_said", "enough", "is_enough", "message", "outcomes")

    def __init__(self, message: Message, outcomes: list[Any], enough: Enough) -> None:
        self.message, self.outcomes, self.enough = message, outcomes, enough
        self.is_enough = False
        self._said: list[Any] | None = None
        self._meant: Any = None

    def take_note(self, member: Member) -> None:
        """Write down what is known of a server now."""
        if member.state is CLOSED:
            outcome = _copy_of(member.failure) or unreachable(member.address, "it was closed")
            member.outbox, member.awaited = None, 0
        elif member.awaited and len(member.replies) >= member.awaited:
            replies, member.awaited, member.replies = member.replies, 0, []
            outcome = self._meaning(member, replies)
        else:
            return
        self.outcomes[member.server] = outcome
        self.is_enough = self.enough(self.outcomes)

    def _meaning(self, member: Member, replies: list[Any]) -> Any:
        """What a server answered. Mostly it is word for word what another one did, and means the same."""
        if replies == self._said:
            return self._meant
        outcome = self.message.decode(member.server, replies)
        if isinstance(outcome, tuple):  # and no error, which names its server
            self._said, self._meant = replies, outcome
        elif any(map(is_a_farewell, replies)):
            member.fail(unreachable(member.address, "it has to be connected to anew"))
        return outcome


class Bundle:
    """One connection to each server."""

    def __init__(self, quorum: Quorum, world: BlockingWorld) -> None:
        self._now, self._needed = world.now, majority_of(len(quorum.targets))
        self._poll = select.poll()
        self._by_number: dict[int, Member] = {}
        self.members = [
            Member(quorum, server, world, self._poll, self._by_number) for server in range(len(quorum.targets))
        ]
        self._used_at = float("-inf")
        self._gathering = Gathering(NOTHING, [], lambda _outcomes: True)
        lookout = Lookout(self._has_gathered)
        self._look_out, self._doze = lookout.look, lookout.doze

    def scatter(self, message: Message, to: Sequence[int], until: float, enough: Enough) -> list[Any]:
        """Send to all, and return what is known once it is enough, or once nothing more can come in time."""
        self._look_after(self._now())
        asked = [self.members[server] for server in to]
        gathering = self._gathering = Gathering(message, [None] * len(self.members), enough)
        sent, last_sent_at = self._post_all(asked, gathering)
        if sent and len(asked) - sent <= len(self.members) - self._needed:
            self._look_out(last_sent_at)
        if not gathering.is_enough:
            self._wait_for_more(asked, gathering, until)
        self._conclude(asked, gathering.outcomes)
        return gathering.outcomes

    def _has_gathered(self, _timeout: int) -> bool:
        """Take in what has come; whether it is enough."""
        gathering = self._gathering
        for number, _ in self._poll.poll(0):
            member = self._by_number.get(number)
            if member is not None:
                member.advance()
                if member.awaited:
                    gathering.take_note(member)
        return gathering.is_enough

    def _wait_for_more(self, asked: list[Member], gathering: Gathering, until: float) -> None:
        """The patient way: sleep until something happens, and look after all that may happen to a connection."""
        limit, outcomes = until, gathering.outcomes
        while not gathering.enough(outcomes):
            pending = [member for member in asked if outcomes[member.server] is None]
            if not pending:
                break
            if limit == until and self._is_about_to_end(outcomes):
                limit = min(until, self._now() + GRACE)
            if not self._let_pass(limit, pending) and self._now() >= limit:
                break
            for member in pending:
                gathering.take_note(member)

    def _is_about_to_end(self, outcomes: list[Any]) -> bool:
        """Whether a majority has answered, or none can any more."""
        failed = sum(isinstance(one, EngineError) for one in outcomes)
        answered = len(outcomes) - outcomes.count(None) - failed
        return answered >= self._needed or failed > len(outcomes) - self._needed

    def _look_after(self, now: float) -> None:
        """Bring connections on their way, and find those that broke while nobody looked."""
        if now - self._used_at > TRUSTED:
            for number, _ in self._poll.poll(0):
                member = self._by_number.get(number)
                if member is not None:
                    member.advance()
        self._used_at = now
        for member in self.members:
            if member.state is not READY or member.owed:
                member.refresh(now)

    def _post_all(self, asked: list[Member], gathering: Gathering) -> tuple[int, float]:
        """Send to those who can be reached now, or once they can; returns to how many it was sent, and when last."""
        sent, at = 0, 0.0
        for member in asked:
            if member.state is READY:
                at = monotonic()
                member.send(gathering.message)
            elif member.state is not CLOSED:
                member.outbox = gathering.message
            if member.awaited:
                sent += 1
            elif member.state is CLOSED:
                gathering.take_note(member)
        return sent, at

    def _let_pass(self, until: float, members: list[Member]) -> bool:
        """Wait until something happens, and let it; False when nothing did."""
        left = until - self._now()
        looking = any(member.state is LOOKING_UP for member in members)
        if looking:
            left = min(left, LOOK_UP_TICK)
        ready = self._poll.poll(math.ceil(min(max(left, 0.0), LONGEST_POLL) * 1000))
        for number, _ in ready:
            member = self._by_number.get(number)
            if member is not None:
                member.advance()
        if looking:
            for member in members:
                member.refresh(self._now())
        return bool(ready)

    def _conclude(self, asked: list[Member], outcomes: list[Any]) -> None:
        for member in asked:
            if outcomes[member.server] is None:
                if member.outbox is not None:
                    outcomes[member.server] = unreachable(member.address, TimeoutError())
                member.disown()

    def cast(self, message: Message, to: Sequence[int]) -> None:
        """Send without waiting for replies, to those who can be reached now."""
        for server in to:
            member = self.members[server]
            if member.state is READY:
                member.send(message)
                member.disown()

    def expect(self) -> None:
        """Forget the wake-ups so far."""
        for member in self.members:
            member.woken.clear()

    def wait(self, holder: bytes, until: float) -> None:
        """Return once a majority has woken the holder, or soon after the first one did, or at `until`."""
        self._doze()
        listening = [member for member in self.members if member.state is READY]
        limit = until
        while True:
            woken = sum(holder in member.woken or member.state is not READY for member in listening)
            if woken >= min(self._needed, len(listening)):
                return
            if woken and limit == until:
                limit = min(until, self._now() + AFTER_FIRST_WAKE)
            if not self._let_pass(limit, listening) and self._now() >= limit:
                return

    def close(self) -> None:
        """Close every connection."""
        for member in self.members:
            member.close()

    def let_go(self) -> None:
        """Close this process's ends only."""
        for member in self.members:
            member.let_go()

    def __del__(self) -> None:
        for member in getattr(self, "members", ()):
            member.close()


def _copy_of(error: EngineError | None) -> EngineError | None:
    """Each caller raises an error of its own."""
    return None if error is None else type(error)(*error.args)


class BlockingQuorumWire:
    """Bundles of connections, shared by threads. Its operations are `async`, and never suspend."""

    def __init__(self, quorum: Quorum, codec: Codec) -> None:
        self.world = BlockingWorld()
        self._quorum, self._codec = quorum, codec
        self._everybody = range(len(quorum.targets))
        self._idle: list[Bundle] = []
        self._kept: dict[int, tuple[str, Bundle]] = {}
        """By thread, since a thread waits for one thing at a time: its holder, and the bundle that it waits on."""
        self._bundles: weakref.WeakSet[Bundle] = weakref.WeakSet()

    def wall(self) -> int:
        """The time of day in microseconds."""
        return time.time_ns() // 1000

    async def scatter(self, request: Request, to: Sequence[int], until: float, enough: Enough) -> list[Outcome]:
        """Ask servers at once; returns what is known of each when it is enough, or when time is up."""
        waits = type(request) is AskGrant and request.patience is not None
        bundle = self._bundle(request.holder)
        if waits:
            bundle.expect()
        outcomes = self._scatter(bundle, message_for(self._codec, request), to, until, enough)
        self._put_back(bundle, request.holder if waits else None)
        return outcomes

    async def scatter_all(self, requests: Sequence[Request], until: float, enough: Enough) -> list[Any]:
        """Ask all servers all of this; the outcome of a server that answered is a list."""
        bundle = self._bundle(None)
        outcomes = self._scatter(bundle, message_for_all(self._codec, requests), self._everybody, until, enough)
        self._put_back(bundle, None)
        return outcomes

    async def collect(
        self, part: bytes, to: Sequence[int], until: float, enough: Enough, *, plain: bool = False
    ) -> list[Any]:
        """Ask servers in the protocol's own form; each outcome is the reply as it came."""
        bundle = self._bundle(None)
        outcomes = self._scatter(bundle, plain_message(part, plain=plain), to, until, enough)
        self._put_back(bundle, None)
        return outcomes

    def _scatter(self, bundle: Bundle, message: Message, to: Sequence[int], until: float, enough: Enough) -> list[Any]:
        try:
            return bundle.scatter(message, to, until, enough)
        except BaseException:
            bundle.close()  # interrupted, nobody knows what its connections still owe
            raise

    def cast(self, request: Request, to: Sequence[int]) -> None:
        """Tell servers, without waiting for what they say."""
        kept = self._kept.get(threading.get_ident())
        waits = kept is not None and kept[0] == request.holder
        bundle = self._bundle(request.holder if waits else None)
        try:
            bundle.cast(message_for(self._codec, request), to)
        except BaseException:
            bundle.close()
            raise
        self._put_back(bundle, request.holder if waits else None)

    def settled(self, holder: str) -> None:
        """This holder waits no longer."""
        kept = self._kept.get(threading.get_ident())
        if kept is not None and kept[0] == holder:
            del self._kept[threading.get_ident()]
            self._put_back(kept[1], None)

    async def wait(self, holder: str, until: float) -> None:
        """Wait for this holder's wake-up on the bundle that it waits on; without one, it is time to ask."""
        kept = self._kept.get(threading.get_ident())
        if kept is None or kept[0] != holder:
            return
        try:
            kept[1].wait(holder.encode(), until)
        except BaseException:
            self._kept.pop(threading.get_ident(), None)
            kept[1].close()
            raise

    async def close(self) -> None:
        """Close what is idle. What is in use goes on, and is closed when it is forgotten."""
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """Let go of every inherited connection without a word to the servers."""
        for bundle in list(self._bundles):
            bundle.let_go()
        self._idle, self._kept, self._bundles = [], {}, weakref.WeakSet()

    def _bundle(self, holder: str | None) -> Bundle:
        kept = self._kept.pop(threading.get_ident(), None) if holder is not None and self._kept else None
        if kept is not None:
            return kept[1]
        try:
            return self._idle.pop()
        except IndexError:
            bundle = Bundle(self._quorum, self.world)
            self._bundles.add(bundle)
            return bundle

    def _put_back(self, bundle: Bundle, waiter: str | None) -> None:
        if waiter is not None:
            self._kept[threading.get_ident()] = (waiter, bundle)
        elif len(self._idle) < MOST_IDLE_BUNDLES:
            self._idle.append(bundle)
        else:
            bundle.close()
