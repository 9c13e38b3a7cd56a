"""Several names at once: all or nothing.

Names are taken in one order everywhere (sorted), so two callers that want the same names can never each hold what the
other waits for. The wait is one bound for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable

from leasehold.core.acquire import Attempt, acquire, release
from leasehold.core.engine import Engine
from leasehold.core.held import Held
from leasehold.errors import LeaseholdError, NotAcquired


async def acquire_several(
    engine: Engine,
    attempts: list[Attempt],
    *,
    wait: float,
    request_timeout: float,
    keep: Callable[[Held], object],
) -> list[Held]:
    """Take every name, or none. `keep` is called with each lease at once, so that it lasts while others are awaited."""
    give_up_at = engine.world.now() + wait
    held_by_now: list[tuple[Attempt, Held]] = []
    try:
        for attempt in sorted(attempts, key=lambda one: one.want.name):
            left = max(give_up_at - engine.world.now(), 0.0)
            held = await acquire(engine, attempt, wait=left, request_timeout=request_timeout)
            keep(held)
            held_by_now.append((attempt, held))
    except LeaseholdError as error:
        await _give_back(engine, held_by_now, request_timeout)
        if isinstance(error, NotAcquired) and error.name is not None:
            raise NotAcquired(error.name, wait=wait, holder=error.holder, token=error.token) from None
        raise
    return [held for _, held in held_by_now]


async def _give_back(engine: Engine, leases: list[tuple[Attempt, Held]], request_timeout: float) -> None:
    """Release what was taken; what cannot be confirmed stays exposed, and the keeper will see to it."""
    for attempt, held in reversed(leases):
        try:
            await release(engine, held, request_timeout=request_timeout)
        except LeaseholdError:
            continue
        attempt.exposed = False
