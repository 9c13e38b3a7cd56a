"""A durable inbox: who submits and who writes can be different processes.

Messages of one partition are handled in the order in which they were put, by the owner of the partition, at least
once. Handled and acknowledged are two steps, and a crash may come between them; to make them one, acknowledge in the
transaction that writes. An owner whose lease was taken over is refused, when it reads and when it acknowledges, by
its token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from leasehold.core.worlds import run_blocking
from leasehold.errors import LeaseLost, Misuse, Moved, QueueFull, StaleToken, quoted
from leasehold.keeping import log
from leasehold.names import check_name
from leasehold.patterns.partitions.bells import Ring
from leasehold.patterns.partitions.owned import Writer

BATCH: Final = 100
"""Messages that are read at a time; other partitions have their turn after them."""
MOST_WAITING: Final = 10_000
MOST_TRIES: Final = 5
FIRST_REST: Final = 0.1
"""Seconds for which a partition rests when handling a message has failed; twice as long after each further try."""
REMEMBER: Final = 24 * 3600.0
"""For how many seconds keys are known."""
EVERY: Final = 0.25
"""Seconds after which an inbox is looked at that nobody has told of."""
LARGEST_PAYLOAD: Final = 256 * 1024
LONGEST_ERROR: Final = 500


class Message:
    """One message, in the hands of the owner of its partition."""

    __slots__ = ("acknowledged", "entity", "partition", "payload", "seq", "tries")

    def __init__(self, partition: int, seq: int, entity: str, payload: str, tries: int) -> None:
        """As it was stored."""
        self.partition, self.seq, self.entity, self.tries = partition, seq, entity, tries
        self.payload: Any = json.loads(payload)
        self.acknowledged = False
        """Whether it was acknowledged in a transaction of the handler's."""

    def __repr__(self) -> str:
        return f"<Message {self.seq} of partition {self.partition} for {quoted(self.entity)}>"


class Parked(NamedTuple):
    """A message that failed so often that it was put aside."""

    partition: int
    seq: int
    entity: str
    payload: Any
    error: str


Handler = Callable[[Writer, Message], object]
AsyncHandler = Callable[[Writer, Message], Coroutine[Any, Any, object]]


class Inbox(Protocol):
    """What an inbox of blocking code can do. Threads may share it."""

    def put(self, entity: str, payload: object, *, key: str | None = None) -> int:
        """Add a message (JSON) for an entity; returns its number in its partition. Raises `QueueFull`.

        With a `key` of the caller's choice, one that is put again because an answer was lost is one message all the
        same; the same key with another entity or payload raises `KeyReused`.
        """
        ...

    def waiting(self) -> list[int]:
        """The partitions for which there are messages."""
        ...

    def take(self, partition: int, token: int, most: int = BATCH) -> list[Message]:
        """The next messages of a partition, in their order; raises `StaleToken` when a later owner was here."""
        ...

    def acknowledge(self, message: Message, token: int) -> None:
        """Say that it was handled, and need not be kept; raises `StaleToken` when a later owner was here."""
        ...

    def fail(self, message: Message, token: int, error: str) -> bool:
        """Say that handling it failed; True when that was once too often, and it was put aside."""
        ...

    def parked(self, most: int = BATCH) -> list[Parked]:
        """Messages that were put aside."""
        ...

    def sweep(self, older_than: float) -> int:
        """Forget messages that were put aside more than so many seconds ago; how many. And keys that are too old."""
        ...

    def listen(self, ring: Ring, over: threading.Event) -> None:
        """Call `ring` when messages have come, until `over` is set; for a thread of its own."""
        ...


class AsyncInbox(Protocol):
    """What an inbox of asyncio code can do; see `Inbox`."""

    async def put(self, entity: str, payload: object, *, key: str | None = None) -> int:
        """Add a message for an entity."""
        ...

    async def waiting(self) -> list[int]:
        """The partitions for which there are messages."""
        ...

    async def take(self, partition: int, token: int, most: int = BATCH) -> list[Message]:
        """The next messages of a partition, in their order."""
        ...

    async def acknowledge(self, message: Message, token: int) -> None:
        """Say that it was handled."""
        ...

    async def fail(self, message: Message, token: int, error: str) -> bool:
        """Say that handling it failed."""
        ...

    async def parked(self, most: int = BATCH) -> list[Parked]:
        """Messages that were put aside."""
        ...

    async def sweep(self, older_than: float) -> int:
        """Forget messages that were put aside long ago."""
        ...

    def listen(self, ring: Ring, over: threading.Event) -> None:
        """Call `ring` when messages have come, until `over` is set; for a thread of its own, as in `Inbox`."""
        ...


def packed(payload: object) -> str:
    """A payload as text: JSON, never anything that could run when it is read."""
    try:
        text = json.dumps(payload, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(f"the payload is no JSON: {quoted(str(error))}") from None
    if len(text) > LARGEST_PAYLOAD:
        raise Misuse(
            f"the payload has {len(text)} bytes and at most {LARGEST_PAYLOAD} are allowed; "
            "store it elsewhere and put where it is"
        )
    return text


def storable(text: str) -> str:
    r"""A text for people in a form that every database can take.

    >>> storable("no such file: caf\udce9.txt")
    'no such file: caf\\udce9.txt'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def check_entity(entity: str) -> str:
    """The name of an entity, which is stored as it is."""
    if storable(entity) != entity:
        raise Misuse(f"an inbox stores the entity as text, without U+0000 and half characters, not {quoted(entity)}")
    return entity


class Key(NamedTuple):
    """The caller's name for a message, and what the message was: as digests, which every collation tells apart."""

    name: str
    fingerprint: str


def key_of(key: str | None, entity: str, text: str) -> Key | None:
    """The key of a message with this text; None when it has none."""
    if key is None:
        return None
    return Key(_digest(check_name(key, what="key")), _digest(f"{len(entity)}:{entity}:{text}"))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class InThreads:
    """An inbox of the blocking world for asyncio: each step runs in a thread, and the event loop goes on."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def put(self, entity: str, payload: object, *, key: str | None = None) -> int:
        """See `Inbox`."""
        return await asyncio.to_thread(self._inbox.put, entity, payload, key=key)

    async def waiting(self) -> list[int]:
        """See `Inbox`."""
        return await asyncio.to_thread(self._inbox.waiting)

    async def take(self, partition: int, token: int, most: int = BATCH) -> list[Message]:
        """See `Inbox`."""
        return await asyncio.to_thread(self._inbox.take, partition, token, most)

    async def acknowledge(self, message: Message, token: int) -> None:
        """See `Inbox`."""
        await asyncio.to_thread(self._inbox.acknowledge, message, token)

    async def fail(self, message: Message, token: int, error: str) -> bool:
        """See `Inbox`."""
        return await asyncio.to_thread(self._inbox.fail, message, token, error)

    async def parked(self, most: int = BATCH) -> list[Parked]:
        """See `Inbox`."""
        return await asyncio.to_thread(self._inbox.parked, most)

    async def sweep(self, older_than: float) -> int:
        """See `Inbox`."""
        return await asyncio.to_thread(self._inbox.sweep, older_than)

    def listen(self, ring: Ring, over: threading.Event) -> None:
        """See `Inbox`."""
        self._inbox.listen(ring, over)


class _Direct(InThreads):
    """An inbox of the blocking world for algorithms that never suspend."""

    async def take(self, partition: int, token: int, most: int = BATCH) -> list[Message]:
        return self._inbox.take(partition, token, most)

    async def acknowledge(self, message: Message, token: int) -> None:
        self._inbox.acknowledge(message, token)

    async def fail(self, message: Message, token: int, error: str) -> bool:
        return self._inbox.fail(message, token, error)


class AsyncFeed:
    """Hands the messages of a partition to its handler, one after the other."""

    def __init__(self, inbox: AsyncInbox, handle: AsyncHandler) -> None:
        self._inbox, self._handle = inbox, handle

    async def work(self, writer: Writer) -> float:
        """Handle what is there now, unless the partition is to be given up meanwhile.

        Returns for how many seconds the partition is to rest, because handling a message has failed.
        """
        try:
            for message in await self._inbox.take(writer.partition, writer.token):
                if writer.stopping:
                    break
                if not await self._handled(writer.about(message.entity), message):
                    return float(FIRST_REST * 2**message.tries)
        except (LeaseLost, StaleToken) as refusal:
            # Whoever owns the partition now has the message, too.
            log().info("a message is left to a later owner: %s", refusal)
            return FIRST_REST
        return 0.0

    async def _handled(self, writer: Writer, message: Message) -> bool:
        try:
            await self._handle(writer, message)
        except (LeaseLost, StaleToken):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was: the message is tried again, or put aside
            log().exception("handling %r failed", message)
            text = storable(f"{type(error).__name__}: {error}"[:LONGEST_ERROR])
            if await self._inbox.fail(message, writer.token, text):
                log().error("%r was put aside", message)
            return False
        if not message.acknowledged:
            await self._inbox.acknowledge(message, writer.token)
        return True

    @staticmethod
    def look_at(future: Any) -> float:
        """For how long the partition is to rest; raises what the inbox itself has raised."""
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, (Moved, QueueFull)):
            raise error
        return 0.0 if error is not None or future.cancelled() else float(future.result())


class Feed(AsyncFeed):
    """The same for blocking code."""

    def __init__(self, inbox: Inbox, handle: Handler) -> None:
        async def handling(writer: Writer, message: Message) -> object:
            return handle(writer, message)

        super().__init__(_Direct(inbox), handling)

    def work(self, writer: Writer) -> float:  # type: ignore[override]
        """Handle what is there now, unless the partition is to be given up meanwhile; see `AsyncFeed`."""
        return run_blocking(super().work(writer))
