"""What surrounds a simulated group of members: a lease table, an inbox, and the leases and results that they give."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from leasehold.errors import LeaseLost, StaleToken
from leasehold.patterns.partitions.inbox import Message

if TYPE_CHECKING:
    from leasehold.sim.partitions import PartitionHistory

TTL: Final = 5.0
MARGIN: Final = 0.1


class Lease:
    """A lease as its holder knows it."""

    def __init__(self, history: PartitionHistory, name: str, holder: str, token: int, ttl: float) -> None:
        self.history, self.name, self.holder, self.token, self.ttl = history, name, holder, token, ttl
        self.valid_until = history.now + ttl - MARGIN
        self.over = False

    @property
    def lost(self) -> bool:
        """Whether it may no longer be held; latches."""
        self.over = self.over or self.history.now >= self.valid_until
        return self.over

    @property
    def is_believed(self) -> bool:
        """The same, without a trace: only judges ask."""
        return not self.over and self.history.now < self.valid_until

    @property
    def remaining(self) -> float:
        """Seconds for which it may still be believed."""
        return 0.0 if self.lost else self.valid_until - self.history.now

    def check(self, need: float = 0.0) -> None:
        """Raise unless it may be believed."""
        if self.remaining <= need:
            raise LeaseLost(self.name, "its time is over", token=self.token)


class Table:
    """The engine: who holds which name until when. A name of the roster may be held by many."""

    def __init__(self, history: PartitionHistory) -> None:
        self.history = history
        self.holders: dict[str, dict[str, tuple[float, int]]] = defaultdict(dict)
        self.tokens: dict[str, int] = defaultdict(int)

    def living(self, name: str) -> dict[str, tuple[float, int]]:
        """Who holds the name now, until when, and with which token."""
        now = self.history.now
        return {holder: entry for holder, entry in self.holders[name].items() if entry[0] > now}

    def take(self, name: str, holder: str, *, shared: bool) -> int | None:
        """Grant it if nobody else holds it, with a higher token."""
        if self.living(name) and not shared:
            return None
        self.tokens[name] += 1
        self.holders[name][holder] = (self.history.now + TTL, self.tokens[name])
        return self.tokens[name]

    def renew(self, name: str, holder: str) -> bool:
        """Prolong it if it is still held."""
        entry = self.living(name).get(holder)
        if entry is not None:
            self.holders[name][holder] = (self.history.now + TTL, entry[1])
        return entry is not None

    def release(self, name: str, holder: str) -> bool:
        """Give it back; whether it was still held."""
        was_held = holder in self.living(name)
        self.holders[name].pop(holder, None)
        return was_held


class Result:
    """What came of an item."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.begun = self.ended = False

    def done(self) -> bool:
        """Whether it is over."""
        return self.ended

    def cancelled(self) -> bool:
        """Nobody cancels here."""
        return False

    def set_exception(self, error: BaseException) -> None:
        """It was handed back."""
        self.error, self.ended = error, True


class SimInbox:
    """The messages of all partitions, and their fence."""

    def __init__(self, history: PartitionHistory) -> None:
        self.history = history
        self.queues: dict[int, list[Message]] = defaultdict(list)
        self.floors: dict[int, int] = defaultdict(int)

    def put(self, partition: int, entity: str, payload: int) -> None:
        """Add a message."""
        self.queues[partition].append(Message(partition, payload, entity, str(payload), 0))

    async def take(self, partition: int, token: int, most: int = 100) -> list[Message]:
        """The first messages, if the token is good; few at a time, so that there is more than one time."""
        await self.history.trip()
        self._raise_floor(partition, token)
        some = self.queues[partition][: min(most, 3)]
        found = [Message(partition, one.seq, one.entity, str(one.seq), 0) for one in some]
        await self.history.trip()
        return found

    async def acknowledge(self, message: Message, token: int) -> None:
        """Remove the message, if it is the first and the token is good."""
        await self.history.trip()
        self._raise_floor(message.partition, token)
        queue = self.queues[message.partition]
        if queue and (queue[0].entity, queue[0].seq) == (message.entity, message.seq):
            queue.pop(0)
        await self.history.trip()

    async def fail(self, message: Message, token: int, error: str) -> bool:
        """No handler fails here but by a refusal."""
        self.history.blame("failed", f"{message!r} under {token}: {error}")
        return False

    def _raise_floor(self, partition: int, token: int) -> None:
        if token < self.floors[partition]:
            raise StaleToken(f"inbox/{partition}", token=token, seen=self.floors[partition])
        self.floors[partition] = token
