"""Kafka as the source of partitions: its rebalances say who is to own them, our leases say with which token.

Kafka's own generation fences the commits of a consumer that was replaced, not what it writes elsewhere. So each
partition has a lease of ours, too: its token is kept by the engine, rises with each owner, and fences those writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from leasehold.client import Leasehold
from leasehold.errors import LeaseLost, Misuse, quoted
from leasehold.keeping import log
from leasehold.lease import Lease
from leasehold.names import check_name, check_ttl
from leasehold.patterns.partitions.owned import Owned, Writer

POLL: Final = 0.1
_ONE_AT_A_TIME: Final = 1
_REPLACED: Final = {"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"}
"""What a broker says to a consumer whose partitions are being given to others."""


class KafkaPartitions:
    """The partitions that a consumer of confluent-kafka is assigned, each with a lease of ours. For one thread.

    Give the consumer ``enable.auto.commit`` false: an offset is committed when its message was handled. Its
    ``partition.assignment.strategy`` has to be one that revokes before it assigns, as ``range`` does by default.
    """

    def __init__(self, locks: Leasehold, consumer: Any, group: str, *, ttl: float = 15.0) -> None:
        """Use an open `confluent_kafka.Consumer`; `group` is part of the names of the leases."""
        for needed in ("subscribe", "poll", "commit", "pause", "resume", "seek", "committed"):
            if not callable(getattr(consumer, needed, None)):
                raise Misuse(f"give an open confluent_kafka.Consumer, not {quoted(consumer)}")
        self._locks, self._consumer, self._group = locks, consumer, check_name(group, what="group")
        self._ttl = check_ttl(ttl, least=locks.facts.least_ttl)
        self._assigned: dict[tuple[str, int], Any] = {}
        self._leases: dict[tuple[str, int], Lease] = {}

    @property
    def owned(self) -> dict[tuple[str, int], int]:
        """The partitions that are served now, by topic and number, each with its token."""
        return {place: lease.token for place, lease in self._leases.items() if not lease.lost}

    def subscribe(self, topics: list[str]) -> None:
        """Have Kafka assign partitions of these topics to this consumer."""
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def messages(self, until: threading.Event) -> Iterator[tuple[Writer, Any]]:
        """Each message with the writer of its key; handled when the next one is asked for, and committed then."""
        while not until.is_set():
            self._take_what_is_assigned()
            message = self._consumer.poll(POLL)
            if message is None:
                continue
            if message.error() is not None:
                log().warning("kafka: %s", message.error())
                continue
            writer = self._writer(message)
            if writer is not None:
                yield writer, message
                self._handled(message)

    def close(self) -> None:
        """Leave the group, and give the leases back."""
        self._consumer.close()  # calls on_revoke
        self._give_back(list(self._leases))

    def _writer(self, message: Any) -> Writer | None:
        place = (message.topic(), message.partition())
        lease = self._leases.get(place)
        if lease is None or lease.lost:
            return None  # it is read again, from the last offset that was committed, when the lease is held
        key = message.key()
        name = f"{message.topic()}/{message.partition()}" if key is None else key.decode("utf-8", "backslashreplace")
        return Writer(Owned(f"{self._group}/{place[0]}", place[1], lease, _ONE_AT_A_TIME), name)

    def _handled(self, message: Any) -> None:
        lease = self._leases.get((message.topic(), message.partition()))
        if lease is None or lease.lost:
            return  # its next owner handles it, perhaps once more
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except Exception as error:
            if _code_of(error) not in _REPLACED:
                raise
            log().info("kafka: %s; the message is left to the next owner of its partition", error)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        """Read nothing before the lease is held: the owner before may not have released it yet."""
        consumer.assign(partitions)
        consumer.pause(partitions)
        for partition in partitions:
            self._assigned[partition.topic, partition.partition] = partition

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        """Called from `poll`, so nothing is being handled now."""
        places = [(partition.topic, partition.partition) for partition in partitions]
        for place in places:
            self._assigned.pop(place, None)
        self._give_back(places)

    def _give_back(self, places: list[tuple[str, int]]) -> None:
        for place in places:
            lease = self._leases.pop(place, None)
            if lease is not None:
                try:
                    lease.release()
                except LeaseLost as loss:  # noqa: LH114 - whoever handled messages under it was told by its own check
                    log().info("%s", loss)

    def _take_what_is_assigned(self) -> None:
        for place, partition in list(self._assigned.items()):
            lease = self._leases.get(place)
            if lease is not None and not lease.lost:
                continue
            if lease is not None:
                del self._leases[place]
                self._consumer.pause([partition])
            taken = self._locks.lock(f"{self._group}/{place[0]}/{place[1]}", ttl=self._ttl).try_acquire()
            if taken is not None:
                self._leases[place] = taken
                self._go_on_from_the_last_commit(partition)

    def _go_on_from_the_last_commit(self, partition: Any) -> None:
        """What an owner before has read and not committed is read again."""
        [committed] = self._consumer.committed([partition], timeout=self._ttl)
        if committed.offset >= 0:
            self._consumer.seek(committed)
        self._consumer.resume([partition])


def _code_of(error: Exception) -> str:
    """What Kafka calls an error of confluent-kafka."""
    name = getattr(error.args[0] if error.args else None, "name", None)
    return str(name()) if callable(name) else ""
