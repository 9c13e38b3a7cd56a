"""Which partition an entity belongs to, and how many partitions each member is to own. Pure functions.

>>> orders = Entities("orders", partitions=1024)
>>> orders.partition_of("customer-42") == orders.partition_of("customer-42")
True
>>> [quota(1024, ["a", "b", "c"], member) for member in "abc"]
[342, 341, 341]
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from leasehold.errors import Misuse, quoted
from leasehold.names import check_name

DEFAULT_PARTITIONS: Final = 256
MOST_PARTITIONS: Final = 65_536
LONGEST_ENTITY_BYTES: Final = 1024
LONGEST_GROUP_BYTES: Final = 200


class Entities:
    """The entities of one group, and how they are spread over partitions. Every process has to say the same.

    With a secret `key`, nobody outside can choose names that all fall into one partition. The number of partitions
    cannot be changed while members are at work: it decides where an entity belongs.
    """

    __slots__ = ("_key", "group", "partitions")

    def __init__(self, group: str, partitions: int = DEFAULT_PARTITIONS, *, key: bytes = b"") -> None:
        """Choose `group` for what the entities are; it becomes part of the names of locks."""
        self.group = check_name(group, what="group")
        if len(group.encode()) > LONGEST_GROUP_BYTES:
            raise Misuse(f"group {quoted(group)} has more than {LONGEST_GROUP_BYTES} bytes")
        if type(partitions) is not int or not 1 <= partitions <= MOST_PARTITIONS:
            raise Misuse(f"partitions is an int from 1 to {MOST_PARTITIONS}, not {quoted(partitions)}")
        if type(key) is not bytes or len(key) > 64:
            raise Misuse("key is at most 64 bytes")
        self.partitions, self._key = partitions, key

    def partition_of(self, entity: str) -> int:
        """The number of its partition: the same in every process, on every machine, in every version."""
        if type(entity) is not str or not entity:
            raise Misuse(f"an entity is named by a text that is not empty, not {quoted(entity)}")
        name = entity.encode("utf-8", "surrogatepass")
        if len(name) > LONGEST_ENTITY_BYTES:
            raise Misuse(f"entity {quoted(entity)} has {len(name)} bytes; at most {LONGEST_ENTITY_BYTES} are allowed")
        digest = hashlib.blake2b(name, digest_size=8, key=self._key, person=b"leasehold-entity").digest()
        return int.from_bytes(digest, "big") % self.partitions

    def lock_of(self, partition: int) -> str:
        """The name of the lock whose lease owns a partition."""
        return f"{self.group}/{partition}"

    @property
    def roster(self) -> str:
        """The name of the lock that every member holds, in shared mode."""
        return f"{self.group}/members"

    def __repr__(self) -> str:
        return f"<Entities {quoted(self.group)} in {self.partitions} partitions>"


def quota(partitions: int, members: Iterable[str], member: str) -> int:
    """How many partitions a member is to own: as many as every other, or one more.

    The remainder goes to the first in the order of their names. So when one joins, nobody's quota grows but its own;
    when one leaves, nobody's shrinks: no partition moves that need not move.
    """
    ranked = sorted(set(members))
    return -((ranked.index(member) - partitions) // len(ranked))


@functools.lru_cache(maxsize=16)
def preference(partitions: int, member: str) -> tuple[int, ...]:
    """The order in which a member looks for free partitions: another one for each, so that few look at the same."""
    person = hashlib.blake2b(member.encode("utf-8", "surrogatepass"), digest_size=32).digest()

    def score(partition: int) -> bytes:
        return hashlib.blake2b(partition.to_bytes(4, "big"), digest_size=8, key=person).digest()

    return tuple(sorted(range(partitions), key=score))


def to_give_up(owned: Iterable[int], wanted_by: Sequence[int], count: int) -> list[int]:
    """Which partitions to give up: those that the member who is to take them looks for first.

    >>> to_give_up({1, 2, 3}, [5, 3, 1, 2, 4], 2)
    [3, 1]
    """
    has = set(owned)
    return [partition for partition in wanted_by if partition in has][:count]
