"""Bugs to plant in the protocol of the redlock engine. The judges of `sim/quorum.py` must catch every one of them."""

from __future__ import annotations

from typing import Final

from leasehold.core import quorum, quorum_server
from leasehold.engines.redlock import RedlockEngine
from leasehold.sim.mutating import Edit, Mutation, edit
from leasehold.sim.quorum import QuorumHistory

_OWNER_AND_COUNTER = "if lease is None or lease.holder != ask.holder or not 0 < lease.counter <= ask.token:"
_OWNER_ONLY = "if lease is None or lease.holder != ask.holder:"
_OR_MAKE_UP_A_LEASE = "lease = lease or Lease(0, ask.holder, 0, now)"
_IS_RENEWAL = "ask.ttl == 7.0"
_IS_MINE = "lease is not None and lease.holder == ask.holder"
_SAY_YES = "return Confirmed(ask.token)"
_TAKE_ANEW = "lease = server.leases[ask.name] = Lease(ask.token, ask.holder, 0, now)"
_MEDIAN = """if len(counters) == len(outcomes):
            return Won(sorted(counters.values(), reverse=True)[needed - 1])
        if not final and outcomes.count(None):
            return None"""


def _unchecked_counter() -> Edit:
    return edit(quorum_server._confirm, (_OWNER_AND_COUNTER, _OWNER_ONLY))


_ALL: Final = (
    Mutation(
        "skip-second-phase",
        "The highest counter of a majority is the token, though the others have not moved up to it.",
        ("unique", "order", "fence"),
        lambda: [edit(quorum.judge_grants, ("return Behind(token, ", "return Won(token) or Behind(token, "))],
    ),
    Mutation(
        "no-owner-check",
        "A server confirms a token whoever has its lease.",
        ("unique", "order", "fence", "renewal"),
        lambda: [
            edit(
                quorum_server._confirm,
                (_OWNER_AND_COUNTER, f"{_OR_MAKE_UP_A_LEASE}\n    if False:"),
            )
        ],
    ),
    Mutation(
        "no-counter-check",
        "A server confirms a token below the counter that it granted the lease under.",
        ("unique", "order", "fence", "renewal"),
        lambda: [_unchecked_counter()],
    ),
    Mutation(
        "one-servers-counter",
        "The token is the counter of one server of the majority, instead of the highest.",
        ("unique", "order", "fence"),
        lambda: [
            _unchecked_counter(),
            edit(
                quorum.judge_grants,
                ("token = max(counters.values())", "token = next(iter(counters.values()))"),
                ("if one < token", "if one != token"),
            ),
        ],
    ),
    Mutation(
        "lowest-counter",
        "The token is the lowest counter of the majority.",
        ("unique", "order", "fence"),
        lambda: [
            _unchecked_counter(),
            edit(
                quorum.judge_grants,
                ("token = max(counters.values())", "token = min(counters.values())"),
                ("if one < token", "if one != token"),
            ),
        ],
    ),
    Mutation(
        "counter-falls",
        "A confirmation sets a server's counter even if that lowers it, and leaves it where it is below.",
        ("unique", "order", "fence"),
        lambda: [
            edit(
                quorum_server._count,
                ("max(_counter(server, name), counter)", "min(_counter(server, name), counter)"),
            )
        ],
    ),
    Mutation(
        "late-grant",
        "Servers whose grant came too late to be counted are asked to confirm as well.",
        ("unique", "order", "fence"),
        lambda: [
            _unchecked_counter(),
            edit(
                RedlockEngine._second_phase,
                ("confirm, behind.laggards, until", "confirm, self._everybody, until"),
            ),
            edit(
                quorum.judge_second_phase,
                ("for server in behind.laggards]", "for server in range(servers)]"),
                ("accepted = counted - len(behind.laggards)", "accepted = 0"),
            ),
        ],
    ),
    Mutation(
        "shared-holder",
        "Attempts of one client share a holder.",
        ("unique", "order", "fence"),
        lambda: [edit(QuorumHistory._start, ('f"holder-{len(self.attempts)}"', '"holder"'))],
    ),
    Mutation(
        "minority",
        "Half of the servers are taken for a majority.",
        ("unique", "order", "fence"),
        lambda: [edit(quorum.majority_of, ("servers // 2 + 1", "servers // 2"))],
    ),
    Mutation(
        "amnesia",
        "A server that lost its data takes part at once, counting from nothing.",
        ("unique", "order", "fence", "renewal"),
        lambda: [
            edit(
                quorum_server._barred,
                ("server.ready = now + quarantine", "server.ready = 0"),
                ("server.highest = server.base = max(server.ready, server.highest)", "pass"),
                ("return quarantine", "return 0"),
            )
        ],
    ),
    Mutation(
        "amnesia-with-a-pause",
        "A server that lost its data waits until all leases are over, and then counts from nothing.",
        ("unique", "order", "fence"),
        lambda: [
            edit(
                quorum_server._barred,
                ("server.highest = server.base = max(server.ready, server.highest)", "pass"),
            )
        ],
    ),
    Mutation(
        "restart-trusted",
        "A server that was rolled back by a restart goes on as if nothing had happened.",
        ("unique", "order", "fence", "renewal"),
        lambda: [edit(quorum_server._barred, ("restarted = server.run != run", "restarted = False"))],
    ),
    Mutation(
        "forgotten-counter-starts-low",
        "The counter of a name that was forgotten counts as nothing, instead of as the highest of all names.",
        ("unique", "order", "fence"),
        lambda: [edit(quorum_server._counter, ("name, server.highest", "name, 0"))],
    ),
    Mutation(
        "renewal-checks-owner-only",
        "A renewal asks for the holder, and not for the counter that its lease was granted under.",
        ("renewal", "unique", "order", "fence"),
        lambda: [
            edit(
                quorum_server._confirm,
                (
                    _OWNER_AND_COUNTER,
                    f"if {_IS_RENEWAL} and {_IS_MINE}:\n        {_SAY_YES}\n    {_OWNER_AND_COUNTER}",
                ),
            )
        ],
    ),
    Mutation(
        "renewal-recreates",
        "A renewal takes a lease that ran out anew.",
        ("renewal", "unique", "order", "fence"),
        lambda: [
            edit(
                quorum_server._confirm,
                (
                    _OWNER_AND_COUNTER,
                    f"if {_IS_RENEWAL} and lease is None:\n        {_TAKE_ANEW}\n    {_OWNER_AND_COUNTER}",
                ),
            )
        ],
    ),
    Mutation(
        "median",
        "The token is the middle one of all counters, and nobody is asked to move up to it.",
        ("unique", "order", "fence"),
        lambda: [
            edit(
                quorum.judge_grants,
                (
                    "token = max(counters.values())",
                    f"{_MEDIAN}\n        token = max(counters.values())",
                ),
            )
        ],
    ),
)

QUORUM_MUTATIONS: Final = {mutation.name: mutation for mutation in _ALL}
