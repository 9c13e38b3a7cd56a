"""Bugs to be planted in the workers of a chaos run, and the run that has to find each of them.

Some are edits of Lua, as an adapter for Redis might have them; others are edits of Python, made in the way of the
simulator's own mutations. Only workers get them: whoever judges is sound.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from leasehold import worlds
from leasehold.chaos import resource
from leasehold.core import acquire, held, keeper
from leasehold.engines import redis, redis_scripts
from leasehold.sim.mutating import Edit, Mutation, edit, planted

Pieces = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bug:
    """What is planted, and what it takes to find it."""

    text: str
    caught_by: tuple[str, ...]
    """The checkers that may condemn it."""
    faults: tuple[str, ...] = ()
    workload: str = "register"
    seconds: float = 9.0
    ttl: float = 1.0
    wait: float = 2.0
    workers: int = 4
    members: int = 1
    edits: Callable[[], list[Edit]] = list
    take: Pieces = ()
    """In the script that takes."""
    release: Pieces = ()
    renew: Pieces = ()


BUGS = {
    "release-without-owner-check": Bug(
        "Release frees the name, whoever holds it; a waiter who gives up does so, too.",
        ("exclusive", "linearizable"),
        wait=0.2,
        release=(
            ("local mine = seat_of(holder)", "local mine = seat or seat_of(holder)"),
            ("elseif sweep_at ~= 0 then", "end\nif sweep_at ~= 0 then"),  # and yet it leaves the queue
        ),
    ),
    "one-permit-too-many": Bug(
        "The limit of a counting lock is off by one.",
        ("permits", "linearizable"),
        workload="permits",
        take=(("taken < limit", "taken <= limit"),),
    ),
    "writers-join-readers": Bug(
        "An exclusive lease is granted beside shared ones.",
        ("exclusive", "linearizable"),
        workload="shared",
        take=(
            ("if kind == 'none' then return true end\n  return", "if kind ~= 'permit' then return true end\n  return"),
            (
                "if mode == 'exclusive' then seat = mine else",
                "if mode == 'exclusive' then drop_seats() seat = mine else",
            ),
        ),
    ),
    "one-holder-for-all": Bug(
        "All attempts share one holder: each recognises the lease of another as its own.",
        ("exclusive", "token order", "linearizable"),
        edits=lambda: [edit(worlds._SystemWorld.nonce, ("os.urandom(16).hex()", '"0" * 32'))],
    ),
    "suspected-too-soon": Bug(
        "A waiter takes over from a holder whose renewals it has not watched for a whole lease.",
        ("exclusive", "linearizable"),
        edits=lambda: [
            edit(acquire.Suspicion.proved_in, ("lasts + margin(lasts, 0.0)", "lasts / 8")),
            edit(acquire.Suspicion.is_ripe, ("2 * margin(self._watched.lasts, 0.0)", "self._watched.lasts")),
        ],
    ),
    "lease-shorter-than-told": Bug(
        "The engine keeps a lease for half of what its holder asked for.",
        ("exclusive", "told", "linearizable"),
        faults=("partition",),
        take=(
            (
                "renewed = now, lasts = ttl, expires = now + ttl",
                "renewed = now, lasts = ttl / 2, expires = now + ttl / 2",
            ),
        ),
        renew=(("math.max(one.lasts, ttl)", "ttl / 2"),),
    ),
    "token-from-the-engine-clock-alone": Bug(
        "The token is the time of the engine, and time can be set back.",
        ("token order",),
        faults=("engine-clock-jump",),
        take=(("token = math.max(token + 1, now, floor + 1)", "token = now"),),
    ),
    "token-from-the-client-clock": Bug(
        "The token is the time of the client, and time can be set back.",
        ("token order",),
        faults=("client-clock-jump",),
        edits=lambda: [
            edit(
                redis.Seen.grant_from,
                ("Grant(token)", "Grant(int(__import__('time').time() * 1e6))"),
            )
        ],
    ),
    "token-deleted-with-the-lease": Bug(
        "The token is a counter that lives in the lease, and starts again when the name was idle.",
        ("token order",),
        take=(("token = math.max(token + 1, now, floor + 1)", "token = token + 1"),),
        release=(
            ("if changed then save() end", "if changed then save() end\nif not seat then redis.call('DEL', HEAD) end"),
        ),
    ),
    "token-only-counted": Bug(
        "The token is the name's last one plus one, and a replica that takes over does not know the last one.",
        ("token order",),
        faults=("failover",),
        members=2,
        take=(("token = math.max(token + 1, now, floor + 1)", "token = token + 1"),),
    ),
    "lease-outlives-its-holder": Bug(
        "The engine keeps a lease for much longer than its holder asked for, dead or alive.",
        ("recovery", "liveness"),
        faults=("kill",),
        take=(
            (
                "renewed = now, lasts = ttl, expires = now + ttl",
                "renewed = now, lasts = ttl * 10, expires = now + ttl * 10",
            ),
        ),
    ),
    "wait-not-bounded": Bug(
        "The wait is only looked at now and then.",
        ("wait overrun",),
        ttl=3.0,  # some work takes longer than a lease, so that others wait for long
        wait=0.3,
        edits=lambda: [
            edit(acquire.Waiting.pass_time_after, (">= self._give_up_at:", ">= self._give_up_at + 5.0:")),
            edit(acquire.Waiting._rests_until, (", self._give_up_at)", ", self._give_up_at + 5.0)")),
        ],
    ),
    "ttl-counted-from-the-reply": Bug(
        "A lease is counted from when its grant came, not from when it was asked for.",
        ("exclusive", "told", "linearizable"),
        faults=("late-grant",),
        wait=4.0,
        edits=lambda: [
            edit(
                acquire._believed,
                ("sent_at if grant.since is None else min(sent_at, grant.since)", "engine.world.now()"),
            )
        ],
    ),
    "belief-twice-the-lease": Bug(
        "A holder believes in its lease for twice as long as it lasts.",
        ("exclusive", "told", "linearizable"),
        faults=("partition",),
        edits=lambda: [
            edit(held.Held.__init__, ("sent_at + want.ttl - margin(", "sent_at + 2 * want.ttl - margin(")),
            edit(held.Held.renewed, ("sent_at + ttl - margin(", "sent_at + 2 * ttl - margin(")),
        ],
    ),
    "keeper-takes-no-refusal": Bug(
        "The keeper takes a refused renewal for one that was made.",
        ("told",),
        faults=("revocation",),
        edits=lambda: [edit(keeper.Keeper._renew_batch, ("elif kept:", "elif kept is not None:"))],
    ),
    "fence-on-writes-only": Bug(
        "The fence is asked by those who write, and not by those who read.",
        ("stale writes", "lost updates"),
        faults=("pause-in-gap",),
        edits=lambda: [
            edit(resource.Resource.read, ("self._fence.reading(request.name, request.token or 0)", "nullcontext()"))
        ],
    ),
    "fence-not-asked": Bug(
        "The resource writes down tokens when it is read, and takes every write.",
        ("stale writes", "lost updates"),
        faults=("pause-in-gap",),
        edits=lambda: [
            edit(resource.Resource.write, ("self._fence.writing(request.name, request.token or 0)", "nullcontext()"))
        ],
    ),
}


def plant(name: str) -> None:
    """Plant a bug in this process, for good."""
    bug = BUGS[name]
    if bug.take:
        take = _edited(redis_scripts.text_of("begin", "queue", "table", "take"), bug.take)
        redis_scripts.TAKE = redis_scripts._script(take, arguments=6)  # type: ignore[misc]
        redis_scripts.TAKE_OR_QUEUE = redis_scripts._script(take, arguments=10)  # type: ignore[misc]
    if bug.release:
        text = _edited(redis_scripts.text_of("begin", "table", "release"), bug.release)
        redis_scripts.RELEASE = redis_scripts._script(text, arguments=1)  # type: ignore[misc]
    if bug.renew:
        text = _edited(redis_scripts.text_of("begin", "table", "renew"), bug.renew)
        redis_scripts.RENEW = redis_scripts._script(text, arguments=3)  # type: ignore[misc]
    _for_good.enter_context(planted(Mutation(name, bug.text, bug.caught_by, bug.edits)))


def check_that_it_fits(name: str) -> None:
    """Raise `LookupError` unless a bug can be planted in the code as it is now."""
    bug = BUGS[name]
    _edited(redis_scripts.text_of("begin", "queue", "table", "take"), bug.take)
    _edited(redis_scripts.text_of("begin", "table", "release"), bug.release)
    _edited(redis_scripts.text_of("begin", "table", "renew"), bug.renew)
    with planted(Mutation(name, bug.text, bug.caught_by, bug.edits)):
        pass


_for_good = ExitStack()
"""Nobody leaves it."""


def _edited(text: str, pieces: Pieces) -> str:
    for old, new in pieces:
        if text.count(old) != 1:
            raise LookupError(f"{old!r} is there {text.count(old)} times; change the bug along with the script")
        text = text.replace(old, new)
    return text
