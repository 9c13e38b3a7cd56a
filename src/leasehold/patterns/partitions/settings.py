"""What can be said of a member of a group, checked once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from leasehold.core.engine import NameStatus
from leasehold.errors import LeaseholdError, Misuse, Moved, quoted
from leasehold.keeping import log
from leasehold.names import check_ttl, check_wait
from leasehold.patterns.partitions.crew import Crew, Member, Pace
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.owned import Item, Owned, Tenure, Writer

SHORT_PAUSE = 0.05
"""Between two rounds when there is more to be done."""

Hook = Callable[[Writer], Any]
TenureT = TypeVar("TenureT", bound=Tenure)


class MemberTerms(TypedDict, total=False):
    """What can be said of a member; `Settings` has the defaults. Durations are in seconds."""

    ttl: float
    """How long the lease of a partition lasts without a renewal: so soon is a dead member followed."""
    grace: float
    """For how long the place of a member is kept that is gone; members are known by their client's label then."""
    every: float
    """How often a member looks who is there."""
    most_moves: int
    """Partitions that one member gives up, or takes, in one round."""
    most_queued: int
    """Items that may wait in one partition."""
    warm: Hook | None
    """Called with each partition that was taken, before anything else is done there."""
    cool: Hook | None
    """Called with each partition that is to be given up, after everything else was done there."""


class Settings(NamedTuple):
    """All settings of a member, with their defaults."""

    ttl: float = 15.0
    grace: float = 0.0
    every: float = 1.0
    most_moves: int = 64
    most_queued: int = 1000
    warm: Hook | None = None
    cool: Hook | None = None

    def checked(self, least_ttl: float) -> Settings:
        """Return these, or raise a `Misuse` that names what is wrong."""
        check_ttl(self.ttl, least=least_ttl)
        if self.grace:
            check_ttl(self.grace, what="grace")
        if check_wait(self.every, what="every") <= 0:
            raise Misuse("every is how often to look around, in seconds, and more than 0")
        for what, number in (("most_moves", self.most_moves), ("most_queued", self.most_queued)):
            if type(number) is not int or number < 1:
                raise Misuse(f"{what} is an int of at least 1, not {quoted(number)}")
        for what, hook in (("warm", self.warm), ("cool", self.cool)):
            if not (hook is None or callable(hook)):
                raise Misuse(f"{what} is a function that takes a writer, not {quoted(hook)}")
        return self

    @property
    def place_ttl(self) -> float:
        """How long a place in the roster lasts without a word."""
        return max(self.ttl, self.grace)

    @property
    def pace(self) -> Pace:
        """What the crew needs to know."""
        return Pace(self.ttl, self.most_moves)

    def name_in(self, about: str) -> str:
        """A member's name, from what the engine says of a holder (``label@host:pid``).

        With a grace it is the label alone, which a restarted process has again.
        """
        return about.rpartition("@")[0] if self.grace else about

    def members(self, status: NameStatus | None) -> list[Member]:
        """Who has a place in the roster."""
        holders = status.holders if status is not None else ()
        return [Member(self.name_in(holder.about), holder.token) for holder in holders]


class Group(ABC, Generic[TenureT]):
    """What members of both worlds have in common."""

    _entities: Entities
    _settings: Settings
    _crew: Crew[TenureT]
    trouble: LeaseholdError | None
    """What kept this member from looking around last time; None when nothing did."""

    @property
    def entities(self) -> Entities:
        """What is shared among the members, and how it is spread over partitions."""
        return self._entities

    @property
    def owned(self) -> dict[int, int]:
        """The partitions that this member serves now, each with its token."""
        return {number: one.lease.token for number, one in list(self._crew.mine.items()) if one.serves}

    @property
    def members(self) -> tuple[str, ...]:
        """Who was there when this member last looked, in the order of their names."""
        return self._crew.members

    def _served(self, entity: str) -> Owned:
        number = self._entities.partition_of(entity)
        owned = self._crew.mine.get(number)
        if owned is None:
            raise Moved(self._entities.group, entity, number, "another member owns it, or nobody yet")
        return owned

    @abstractmethod
    def _start(self, owned: Owned) -> None:
        """Have somebody run the queue of a partition."""

    @abstractmethod
    def _future(self) -> Any:
        """A future of this world."""

    def _unawaited(self) -> Any:
        """The future of work that nobody waits for."""
        future = self._future()
        future.add_done_callback(_log_failure)
        return future

    def _put(self, owned: Owned, item: Item) -> None:
        if owned.put(item):
            self._start(owned)

    def _put_if_served(self, owned: Owned, item: Item) -> None:
        try:
            self._put(owned, item)
        except LeaseholdError as error:
            item.hand_back(error)

    def _close_one(self, owned: Owned, why: str) -> None:
        last = None
        if self._settings.cool is not None and not owned.failed:
            last = Item("", self._settings.cool, self._unawaited())
        if owned.close(why, last):
            self._start(owned)

    def _too_few(self, count: int, within: float) -> LeaseholdError:
        return LeaseholdError(
            f"{len(self.owned)} and not {count} partitions are owned after {within:g} s"
            + (f"; {self.trouble}" if self.trouble else "")
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self._entities.group)} owns {len(self.owned)}>"


def _log_failure(future: Any) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, Moved):
        log().error("warming or cooling a partition failed", exc_info=error)
