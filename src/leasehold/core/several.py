"""Several names at once: all or nothing.

Names are taken in one order everywhere (sorted), so two callers that want the same names can never each hold what the
other waits for. The wait is one bound for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable

from leasehold.core.acquire import GRACE, SHORTEST_REQUEST, Attempt, Room, acquire
from leasehold.core.engine import Engine
from leasehold.core.held import RELEASED, Held
from leasehold.errors import EngineError, LeaseholdError, NotAcquired


async def acquire_several(
    engine: Engine,
    attempts: list[Attempt],
    *,
    wait: float,
    request_timeout: float,
    keep: Callable[[Held], object],
    room: Room | None = None,
) -> list[Held]:
    """Take every name, or none. `keep` is called with each lease at once, so that it lasts while others are awaited."""
    give_up_at = engine.world.now() + wait
    held_by_now: list[tuple[Attempt, Held]] = []
    try:
        for attempt in sorted(attempts, key=lambda one: one.want.name):
            left = max(give_up_at - engine.world.now(), SHORTEST_REQUEST) if wait else 0.0
            held = await acquire(engine, attempt, wait=left, request_timeout=request_timeout, room=room)
            keep(held)
            held_by_now.append((attempt, held))
            _check_all(held_by_now)
    except LeaseholdError as error:
        await _give_back(engine, held_by_now)
        if isinstance(error, NotAcquired) and error.name is not None:
            raise NotAcquired(error.name, wait=wait, holder=error.holder, token=error.token) from None
        raise
    return [held for _, held in held_by_now]


def _check_all(leases: list[tuple[Attempt, Held]]) -> None:
    """While one was awaited, another may have been lost; then there is nothing to return."""
    for _, held in leases:
        if not held.live:
            raise held.loss()


async def _give_back(engine: Engine, leases: list[tuple[Attempt, Held]]) -> None:
    """Release what was taken, within the grace; the rest stays exposed, and the keeper will see to it."""
    for _, held in leases:
        held.end(RELEASED)
    give_up_at = engine.world.now() + GRACE
    for attempt, held in reversed(leases):
        try:
            await engine.release(held.want.name, held.want.holder, until=give_up_at)
        except EngineError:
            return
        attempt.exposed = False
