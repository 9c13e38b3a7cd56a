"""What the leases are for: resources that are read, changed and written, each with another fence before it.

Requests to a resource take time too: a write may still be under way when the lease under which it was sent is over.
A write is not repeated here; for that a resource has idempotency keys or a sequence beside the token.
"""

from __future__ import annotations

from typing import NamedTuple

from leasehold.errors import LeaseholdError, OutcomeUnknown
from leasehold.fences.rule import NEVER, Claim
from leasehold.sim.history import Event, Touched
from leasehold.sim.network import Network
from leasehold.sim.plan import FENCES, Fence
from leasehold.sim.scheduler import PARK, Task

PATIENCE = 1.5


class Resource:
    """Something that is changed by reading it, thinking, and writing it."""

    __slots__ = ("fence", "label", "seen", "written", "wrote")

    def __init__(self, label: str, fence: Fence) -> None:
        self.label, self.fence = label, fence
        self.seen = self.written = NEVER
        """The highest token that was seen, and the highest that has written."""
        self.wrote = 0
        """The latest write."""


class By(NamedTuple):
    """Who asks, under which lease."""

    who: str
    holder: str
    name: str
    token: int


class Store:
    """All resources: for each name one with each kind of fence."""

    def __init__(self, network: Network, events: list[Event], names: tuple[str, ...]) -> None:
        self._network, self._scheduler, self._events = network, network.scheduler, events
        self._resources = {(name, fence): Resource(f"{name}/{fence}", fence) for name in names for fence in FENCES}
        self._writes = 0

    async def read(self, by: By, fence: Fence) -> int:
        """Read; a resource whose reads are fenced refuses a stale reader, and remembers the token."""
        return await self._request(by, self._resources[by.name, fence], 0, 0)

    async def write(self, by: By, fence: Fence, based_on: int) -> None:
        """Write what came of the value that was read."""
        self._writes += 1
        await self._request(by, self._resources[by.name, fence], self._writes, based_on)

    async def _request(self, by: By, resource: Resource, write: int, based_on: int) -> int:
        scheduler, network = self._scheduler, self._network
        task = scheduler.current
        if not (network.losses and network.rng.random() < network.losses):
            at = scheduler.now + network.delay()
            scheduler.call_at(at, self._touch, (task, task.turn), by, resource, write, based_on)
        scheduler.resume_at(scheduler.now + PATIENCE, task)
        answer = await PARK
        if answer is None:
            raise OutcomeUnknown("the resource did not answer")
        if isinstance(answer, LeaseholdError):
            raise answer
        assert isinstance(answer, int)
        return answer

    def _touch(self, asker: tuple[Task, int], by: By, resource: Resource, write: int, based_on: int) -> None:
        """Check, remember and write, in one step; the check is the product's own rule."""
        writes, seen, refusal = write > 0, resource.seen, None
        if resource.fence == "both" or (resource.fence == "writes" and writes):
            claim = Claim(resource.label, by.token, NEVER, writes, once=False)
            refusal = claim.refusal(seen, resource.written)
            if refusal is None:
                resource.seen, resource.written = max(seen, by.token), max(resource.written, claim.mark)
        value = based_on if writes else resource.wrote
        now, accepted = self._scheduler.now, refusal is None
        label, fence = resource.label, resource.fence
        self._events.append(Touched(now, by.who, by.holder, label, fence, write, value, by.token, seen, accepted))
        if accepted and writes:
            resource.wrote = write
        if not (self._network.losses and self._network.rng.random() < self._network.losses):
            answer = resource.wrote if refusal is None else refusal
            self._scheduler.call_at(now + self._network.delay(), self._scheduler.resume, *asker, answer)
