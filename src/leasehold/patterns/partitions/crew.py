"""How the members of a group share its partitions: one member's part in it, round by round.

Nobody assigns. Each member holds a shared lease on the roster, by which everybody knows who is there, and knows its
quota from that. Who owns more than its quota gives partitions up: drains, stops, releases. Who owns less looks for free
ones, and takes them: the engine gives a name only after it was released, or has expired, and with a higher token. So
a wrong view of the roster costs balance for a round, and never two owners.

An algorithm like those of `leasehold.core`: it touches nothing but the `Ground` that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from leasehold.errors import LeaseLost
from leasehold.patterns.partitions.entities import Entities, preference, quota, to_give_up
from leasehold.patterns.partitions.owned import Owned, Tenure

MOST_PROBES: Final = 256
"""Names that are tried in one round; the next round goes on from there."""

TenureT = TypeVar("TenureT", bound=Tenure)


class Member(NamedTuple):
    """One member, as the roster tells of it."""

    name: str
    token: int
    """Of its place in the roster: the newest member has the highest."""


class Ground(Protocol[TenureT]):
    """The locks of a group in one world."""

    def now(self) -> float:
        """Seconds on a clock that nobody can set."""
        ...

    async def enlist(self) -> TenureT:
        """Take a place in the roster."""
        ...

    async def stay(self, place: TenureT) -> None:
        """Prolong the place in the roster when that is due; raises `LeaseLost` when it is lost."""
        ...

    async def roster(self) -> list[Member]:
        """All who have a place in the roster."""
        ...

    async def take(self, partition: int) -> TenureT | None:
        """Take the lease of a partition if it is free."""
        ...

    async def release(self, lease: TenureT) -> None:
        """Give a lease back; raises `LeaseLost` when it was lost already."""
        ...


class Pace(NamedTuple):
    """How fast partitions move."""

    ttl: float
    most_moves: int
    """Partitions that one member gives up, or takes, in one round."""


class Crew(Generic[TenureT]):
    """One member's part. `opened` is called with each partition that was taken, `close` ends the service of one."""

    def __init__(
        self,
        ground: Ground[TenureT],
        entities: Entities,
        me: str,
        pace: Pace,
        *,
        open_: Callable[[int, TenureT], Owned],
        close: Callable[[Owned, str], object],
    ) -> None:
        self.mine: dict[int, Owned] = {}
        self.members: tuple[str, ...] = ()
        self.place: TenureT | None = None
        self._leases: dict[int, TenureT] = {}
        self._ground, self._entities, self._me, self._pace = ground, entities, me, pace
        self._open, self._close = open_, close
        self._order = preference(entities.partitions, me)
        self._at, self._tried = 0, 0
        self._rests_until, self._rest = 0.0, 0.0
        self._shunned: dict[int, float] = {}

    async def round(self) -> bool:
        """Look around once, and do what is to be done now; whether there is more to be done at once."""
        self._let_go_of_lost()
        moved = await self._release_drained()
        members = await self._look()
        goal = quota(self._entities.partitions, [member.name for member in members], self._me)
        self._give_up(goal, members)
        return await self._take(goal) or moved

    async def leave(self) -> bool:
        """Give everything up, over as many calls as it takes; whether all is given back."""
        for owned in list(self.mine.values()):
            if owned.closing is None:
                self._close(owned, "this member leaves")
        await self._release_drained()
        return not self.mine

    def _let_go_of_lost(self) -> None:
        for owned in list(self.mine.values()):
            if owned.lease.lost and owned.closing is None:
                self._close(owned, "its lease was lost")

    async def _release_drained(self) -> bool:
        """Give back what has come to rest. What runs on keeps its lease, and so nobody else can take it."""
        moved = False
        for number, owned in list(self.mine.items()):
            if owned.closing is None or not owned.is_idle:
                continue
            if owned.failed:
                self._shunned[number] = self._ground.now() + self._pace.ttl
            lease = self._leases.pop(number)
            del self.mine[number]
            moved = True
            if not lease.lost:
                try:
                    await self._ground.release(lease)
                except LeaseLost:
                    continue  # it ran out on the way, and is free all the same
        return moved

    async def _look(self) -> list[Member]:
        if self.place is not None:
            try:
                await self._ground.stay(self.place)
            except LeaseLost:
                self.place = None
        if self.place is None:
            self.place = await self._ground.enlist()
        # It is a member by its own lease, whether or not the engine lists it yet.
        members = {*await self._ground.roster(), Member(self._me, self.place.token)}
        names = tuple(sorted({member.name for member in members}))
        if names != self.members:
            self.members = names
            self._look_from_the_start()
        return sorted(members, key=lambda member: member.token)

    def _give_up(self, goal: int, members: list[Member]) -> None:
        serving = [owned.number for owned in self.mine.values() if owned.closing is None]
        closing = len(self.mine) - len(serving)
        count = min(len(serving) - goal, self._pace.most_moves - closing)
        newest = next((member.name for member in reversed(members) if member.name != self._me), None)
        if count <= 0 or newest is None:
            return
        for number in to_give_up(serving, preference(self._entities.partitions, newest), count):
            self._close(self.mine[number], "it moves to another member")

    def _look_from_the_start(self) -> None:
        self._at = self._tried = 0
        self._rests_until = self._rest = 0.0

    async def _take(self, goal: int) -> bool:
        """Take free partitions up to the quota; whether another look would not be in vain."""
        want = min(goal - sum(owned.closing is None for owned in self.mine.values()), self._pace.most_moves)
        if want <= 0 or self._ground.now() < self._rests_until:
            return False
        for _ in range(min(MOST_PROBES, len(self._order))):
            number = self._order[self._at]
            self._at = (self._at + 1) % len(self._order)
            self._tried += 1
            if await self._take_one(number):
                self._tried, self._rest, want = 0, 0.0, want - 1
                if not want:
                    return True
            if self._tried >= len(self._order):  # once around, and nothing was free
                self._tried = 0
                self._rest = min(max(self._rest * 2, self._pace.ttl / 32), self._pace.ttl / 4)
                self._rests_until = self._ground.now() + self._rest
                return False
        return True

    async def _take_one(self, number: int) -> bool:
        if number in self.mine or self._shunned.get(number, 0.0) > self._ground.now():
            return False
        lease = await self._ground.take(number)
        if lease is None:
            return False
        self._shunned.pop(number, None)
        self._leases[number] = lease
        self.mine[number] = self._open(number, lease)
        return True
