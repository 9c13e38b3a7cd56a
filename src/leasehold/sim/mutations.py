"""Bugs that a lease library can have, planted one at a time to see that the judges catch them.

Each function is one bug: its docstring says which, its decorator which judges may condemn it. Many of them were found
in the wild.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold import lock
from leasehold.core import acquire, held, keeper, several, table
from leasehold.fences import rule
from leasehold.sim import engine, resources, world
from leasehold.sim.mutating import Edit, Mutation, edit, registrar

if TYPE_CHECKING:
    from leasehold.core.engine import Want
    from leasehold.sim.server import SimServer

MUTATIONS: dict[str, Mutation] = {}


_caught_by = registrar(MUTATIONS)


# The lease table.


@_caught_by("exclusion", "told")
def no_owner_check_on_release() -> list[Edit]:
    """Release frees the name, whoever holds it."""
    return [edit(table.release, ("seat = _seat_of(entry, holder)", "seat = entry.seats[0] if entry.seats else None"))]


@_caught_by("exclusion", "told")
def regrant_without_rearming() -> list[Edit]:
    """A holder that asks again is recognised, but its TTL does not start anew; the holder counts from its retry."""
    return [edit(table.take, ("_beat(mine, ask.ttl, now)", "mine.beat += 1"))]


@_caught_by("liveness")
def retry_answered_busy() -> list[Edit]:
    """A holder that asks again, because no answer came, is told that the name is held: by itself."""
    return [edit(table.take, ("if mine is not None:", "if mine is None and False:"))]


@_caught_by("tokens", "fence")
def token_minted_after_the_grant() -> list[Edit]:
    """The seat is taken in one step and the token drawn in a second one: who is slow in between gets the higher."""
    return [
        edit(table._grant, ("Seat(ask.holder, entry.token,", "Seat(ask.holder, 0,")),
        edit(
            engine.SimEngine.take,
            (
                "return answer",
                (
                    "if isinstance(answer, Grant):\n"
                    "        from leasehold.sim.mutations import mint\n"
                    "        token = await self._request(lambda _link: mint(server, want), until)\n"
                    "        assert isinstance(token, int)\n"
                    "        return Grant(token)\n"
                    "    return answer"
                ),
            ),
        ),
    ]


def mint(server: SimServer, want: Want) -> int:
    """Draw a token for a seat that is held, or was."""
    entry = server.entries.setdefault(want.name, table.Entry())
    entry.token = max(entry.token + 1, server.clock())
    for seat in entry.seats:
        if seat.holder == want.holder:
            seat.token = entry.token
    return entry.token


@_caught_by("tokens", "fence")
def token_released_with_the_lease() -> list[Edit]:
    """The token lives in the lease and is deleted with it: where the clock was set back, it starts again lower."""
    return [edit(table.release, ("entry.turn_since = now", "entry.turn_since, entry.token = now, 0"))]


@_caught_by("tokens", "fence")
def token_from_the_clock_alone() -> list[Edit]:
    """The token is the time, and time can be set back."""
    return [edit(table._grant, ("max(entry.token + 1, stamp, ask.floor + 1)", "max(stamp, ask.floor + 1)"))]


@_caught_by("tokens", "fence")
def token_from_a_counter_alone() -> list[Edit]:
    """The token is a counter in the server's memory, and a server can lose its data."""
    return [edit(table._grant, ("max(entry.token + 1, stamp, ask.floor + 1)", "max(entry.token + 1, ask.floor + 1)"))]


@_caught_by("tokens", "fence", "exclusion")
def renewal_recreates_a_missing_lease() -> list[Edit]:
    """A renewal that finds no lease makes one, as "set if absent" does."""
    return [
        edit(
            table.renew,
            (
                "if seat is None or seat.token != token:",
                (
                    "if seat is None:\n"
                    '        seat = Seat(holder, token, "exclusive", now, now + ttl, ttl)\n'
                    "        entry.seats.append(seat)\n"
                    "    if seat.token != token:"
                ),
            ),
        )
    ]


@_caught_by("exclusion", "told")
def writers_join_readers() -> list[Edit]:
    """An exclusive lease is granted beside shared ones."""
    return [
        edit(table._fits, ('if mode == "exclusive" or any(', "if any("), ('mode == "shared" or', 'mode != "permit" or'))
    ]


@_caught_by("exclusion", "told")
def one_permit_too_many() -> list[Edit]:
    """The limit of a counting lock is off by one."""
    return [edit(table._fits, ("len(entry.seats) < limit", "len(entry.seats) <= limit"))]


@_caught_by("order")
def queue_ignored() -> list[Edit]:
    """Whoever asks while the name is free gets it, past those who wait."""
    return [edit(table._may_take, ("if rank == 0:", "if rank >= 0:"))]


@_caught_by("order")
def readers_jump_the_queue() -> list[Edit]:
    """Readers join readers past a writer that waits: it may starve."""
    return [edit(table._may_take, ("if rank == 0:", 'if rank == 0 or ask.mode == "shared":'))]


@_caught_by("liveness", "leftovers")
def dead_waiter_never_skipped() -> list[Edit]:
    """A free name stays reserved for the head of the queue, even if that one is dead."""
    return [
        edit(table._turn_starts, ("rank * TURN", "rank * TURN * 1000")),
        edit(table._lapse, ("if place.until > now", "if place.until")),
    ]


@_caught_by("handover")
def nobody_woken() -> list[Edit]:
    """A release wakes nobody: the next in the queue asks when the lease would have run out."""
    return [edit(table._next_to_wake, ("if not entry.queue:", "if entry.queue or now:"))]


@_caught_by("takeover")
def promoted_head_not_told() -> list[Edit]:
    """Who has become the first in the queue is not told, and sleeps on as somebody far behind while a lease runs out.

    Here all but the head count as very far behind: a history has too few waiters for a queue that is long enough.
    """
    return [
        edit(table._ask_again, ("rank * TURN if rank > NEAR", "9 * rank * TURN if rank")),
        edit(table._next_to_wake, ("head if head.until > ends + LATENESS + SLACK else None", "None")),
    ]


@_caught_by("lock_delay")
def lock_delay_ignored() -> list[Edit]:
    """A name whose lease was lost is open at once."""
    return [edit(table._close, ("if seat.delay:", "if seat.delay and not ended:"))]


@_caught_by("lock_delay")
def lock_delay_ended_by_the_loser() -> list[Edit]:
    """The keeper gives a lost lease back just before it runs out, so that it counts as released."""
    return [edit(keeper.Keeper._lose, ("if not held.want.delay:", "if held.want:"))]


# Acquiring.


@_caught_by("exclusion", "told")
def ttl_counted_from_the_reply() -> list[Edit]:
    """The deadline is counted from when the answer came, not from before the request left."""
    return [
        edit(acquire._believed, ("sent_at if grant.since is None else min(sent_at, grant.since)", "engine.world.now()"))
    ]


@_caught_by("liveness")
def handed_to_whoever_waits() -> list[Edit]:
    """A name is handed to the head of the queue for a whole TTL, however long ago anything was heard of it."""
    return [edit(table.hand_over, ("if not promptly or", "if"))]


@_caught_by("exclusion")
def late_grant_used() -> list[Edit]:
    """A grant is used although its own deadline passed while it travelled."""
    return [edit(acquire._believed, ("if world.now() < held.valid_until else None", ""))]


@_caught_by("exclusion", "told")
def suspected_too_soon() -> list[Edit]:
    """A waiter takes over from a holder whose renewals it has not watched for a whole lease."""
    return [edit(acquire.Suspicion.proved_in, ("self._since + lasts + margin(lasts, 0.0)", "self._since + lasts / 4"))]


@_caught_by("liveness")
def no_overtaking() -> list[Edit]:
    """Waiters trust the server's clock: set back, it keeps a dead holder for too long."""
    return [edit(acquire.Suspicion.suspect, ("proved_in > 0", "proved_in > -1e9"))]


@_caught_by("liveness")
def no_safety_poll() -> list[Edit]:
    """A waiter asks again only when it is woken; a wake-up that gets lost is lost."""
    return [
        edit(
            acquire.Waiting._rests_until,
            ("min(self._world.now() + ask_again, self._give_up_at)", "self._give_up_at + 0 * ask_again"),
        )
    ]


@_caught_by("patience")
def wait_not_bounded() -> list[Edit]:
    """The wait is only looked at now and then."""
    return [edit(acquire.Waiting.pass_time_after, (">= self._give_up_at:", ">= self._give_up_at + 1.0:"))]


@_caught_by("patience")
def request_outlives_the_wait() -> list[Edit]:
    """A request may take its whole time, however little is left of the wait."""
    return [edit(acquire._request_time, ("if wait and left < request_timeout:", "if not wait and left:"))]


@_caught_by("leftovers")
def place_left_behind() -> list[Edit]:
    """Who gives up does not leave the queue."""
    return [
        edit(acquire.Waiting._give_up, ("if self._attempt.exposed:", "self._attempt.exposed = False\n    if not want:"))
    ]


@_caught_by("handover", "order")
def place_ends_with_the_wait() -> list[Edit]:
    """The place runs out as its waiter gives up, so its leaving wakes nobody."""
    return [
        edit(acquire.acquire, ("max(left, 0.0) + SHORTEST_REQUEST + GRACE", "max(left, 0.0)")),
        edit(table.take, ("min(ask.patience, ask_again) + LATENESS", "min(ask.patience, ask_again + LATENESS)")),
    ]


@_caught_by("tokens", "exclusion", "told")
def one_holder_per_client() -> list[Edit]:
    """All attempts of a process share one holder: each recognises the other's lease as its own."""
    return [edit(world.SimWorld.nonce, ('f"{self.inside.label}.{self._nonces}"', 'f"{self.inside.label}.0"'))]


# The holder's own view.


@_caught_by("exclusion", "told")
def no_drift_margin() -> list[Edit]:
    """The holder uses its lease to the last moment, as if all clocks ran alike."""
    return [edit(held.margin, ("ttl * 0.01 + 0.005 + extra", "extra"))]


@_caught_by("told")
def loss_not_latched() -> list[Edit]:
    """Whether a lease is lost is asked of the clock alone: a late renewal brings it back."""
    return [
        edit(held.Held.renewed, ("if not self.live:", "if self.ended is not None:")),
        edit(
            held.Held.live,
            (
                "if self.ended is None:\n        if self.world.now() >= self.valid_until:",
                (
                    "if self.ended is None:\n        if self.world.now() >= self.valid_until:\n"
                    "            return False\n        if False:"
                ),
            ),
        ),
    ]


@_caught_by("told")
def renewal_revives_a_lost_lease() -> list[Edit]:
    """A renewal that comes back late makes a lease that was declared lost a good one again."""
    return [edit(held.Held.renewed, ("if not self.live:\n        return False", "self.ended = None"))]


@_caught_by("told", "exclusion")
def belief_ends_with_the_answer() -> list[Edit]:
    """The holder believes in its lease until the release is confirmed, when the next may have it already."""
    return [
        edit(
            acquire.release,
            ("held.end(RELEASED)\n    if held.ended is not RELEASED:", "if held.ended:"),
            ("if not (was_held or uncertain):", "held.end(RELEASED)\n        if not (was_held or uncertain):"),
        )
    ]


@_caught_by("exclusion", "told")
def extension_counted_from_the_reply() -> list[Edit]:
    """An extension by hand counts from when it was confirmed."""
    return [edit(acquire.extend, ("held.renewed(sent_at, ttl)", "held.renewed(world.now(), ttl)"))]


@_caught_by("exclusion", "told")
def longest_hold_counted_from_the_request() -> list[Edit]:
    """A lease whose grant took long is over when its holder gets it."""
    return [edit(held.Held.limit_hold, ("self.world.now() + longest", "self.acquired_at + longest"))]


# The keeper.


@_caught_by("exclusion", "told")
def renewal_counted_from_the_reply() -> list[Edit]:
    """A renewal counts from when it was confirmed."""
    return [
        edit(
            keeper.Keeper._renew_batch, ("held.renewed(sent_at, held.ttl)", "held.renewed(self._world.now(), held.ttl)")
        )
    ]


@_caught_by("told")
def told_by_the_renewal_loop() -> list[Edit]:
    """Loss is noticed where renewals are made: one that hangs delays the news."""
    return [
        edit(keeper.Keeper.watch_deadlines, ("if held.lost:\n                    self._lose(held)", "continue")),
        edit(
            keeper.Keeper.renew,
            (
                "batch, earliest = self._due()\n",
                (
                    "for one in self.leases:\n            if one.lost:\n                self._lose(one)\n"
                    "        batch, earliest = self._due()\n"
                ),
            ),
        ),
    ]


@_caught_by("told")
def nobody_told() -> list[Edit]:
    """The keeper drops a lost lease in silence."""
    return [edit(keeper.Keeper._lose, ("self._tell(held)", "self._world.now()"))]


@_caught_by("soundness")
def renewer_dies_of_an_error() -> list[Edit]:
    """The first renewal that gets no answer ends the loop that renews."""
    return [edit(keeper.Keeper._renew_batch, ("self._try_again_soon(batch, error)\n        return", "raise"))]


@_caught_by("soundness")
def keeper_waits_for_what_is_over() -> list[Edit]:
    """The keeper sleeps until a lease that is over is due again, which is at once, and again, and again."""
    return [
        edit(keeper.Keeper.watch_deadlines, ("elif earliest is None", "if earliest is None")),
        edit(keeper.Keeper._due, ("held.renew_at for held in kept]", "held.renew_at for held in self.leases]")),
    ]


@_caught_by("leftovers")
def abandoned_attempt_not_cleaned_up() -> list[Edit]:
    """What an interrupted attempt left on the server stays there until it runs out."""
    return [edit(keeper.Keeper.abandon, ("self._chores.append(", "list[Chore]().append("))]


@_caught_by("leftovers")
def abandoned_attempt_looked_for_once() -> list[Edit]:
    """The clean-up overtakes the interrupted request, finds nothing, and is content."""
    return [edit(keeper.Keeper._give_back, (" or looked_before", " or True"))]


@_caught_by("leftovers")
def released_lease_still_kept() -> list[Edit]:
    """A lease that was released stays with the keeper."""
    return [edit(keeper.Keeper.forget, (".pop(held.want.holder, None)", ".get(held.want.holder)"))]


# Several names, and the fence.


@_caught_by("liveness")
def several_names_in_any_order() -> list[Edit]:
    """Several names are taken in the order in which they were given: two callers can wait for each other."""
    return [
        edit(lock._Names.names, ("tuple(sorted(self._terms))", "tuple(self._terms)")),
        edit(several.acquire_several, ("sorted(attempts, key=lambda one: one.want.name)", "attempts")),
    ]


@_caught_by("exclusion")
def several_names_not_looked_after() -> list[Edit]:
    """Several names are returned although one of them was lost while another was awaited."""
    return [edit(several.acquire_several, ("_check_all(held_by_now)", "len(held_by_now)"))]


@_caught_by("fence")
def fence_accepts_any_token() -> list[Edit]:
    """The fence writes down tokens but refuses none."""
    return [
        edit(rule.Claim.refusal, ("if self.token < seen:", "if self.token < NEVER:"), ("if written > ", "if NEVER > "))
    ]


@_caught_by("fence")
def fence_refuses_its_own_holder() -> list[Edit]:
    """The fence wants each token to be higher than the last, so a holder can write only once."""
    return [edit(rule.Claim.refusal, ("if self.token < seen:", "if self.token <= seen:"))]


@_caught_by("fence")
def fence_on_writes_only() -> list[Edit]:
    """Reads are not fenced: a stale write that lands between a new holder's read and its write is lost."""
    return [
        edit(
            resources.Store._touch,
            ('if resource.fence == "both" or (', "if ("),
            ('resource.fence == "writes" and', 'resource.fence != "none" and'),
        )
    ]
