"""Fencing tokens from a majority of servers that know nothing of each other: the decisions of a client.

Each server keeps, for each name, a counter that never falls and at most one lease. A round of requests asks all of
them for the lease under a counter that is above all earlier ones there (`AskGrant`). A token is good once a majority of
the servers has *accepted* it: the lease there was the asker's, granted under a counter that is not above the token, and
the counter there is not below the token any more. A server whose grant is the token itself has accepted it; one that
granted less is asked to move up (`AskConfirm`), and refuses if the lease is no longer the asker's.

Two majorities share a server, and what is accepted later at one server is higher there. So no two attempts ever get the
same token, and an attempt that began after another one was complete gets a higher one. No clock takes part in that.

Everything here is a pure function of the answers so far: the engine calls it, and so does the simulator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown

LAST_ROUND = 2**53 - 1
"""A release that means whatever its holder has there, of whichever round."""


class AskGrant(NamedTuple):
    """Lease the name to this holder, and count."""

    name: str
    holder: str
    round: int
    """Counts the rounds of one process: a request that arrives after one of a later round changes nothing."""
    ttl: float
    floor: int
    """Count at least to here (but not further than a second ahead of the server's clock), so that counters agree."""
    about: str = ""
    patience: float | None = None
    """Refused, be woken when the name is free, for so many seconds."""
    since: int = 0
    """The place among those who wait, the same on every server."""
    force: bool = False
    """Whoever holds it: an operator breaks the lease."""


class AskConfirm(NamedTuple):
    """Move up to the token, and let the lease last for the TTL from now: a second phase, or a renewal."""

    name: str
    holder: str
    token: int
    ttl: float


class AskRelease(NamedTuple):
    """Give back what this holder got in rounds up to this one."""

    name: str
    holder: str
    round: int = LAST_ROUND
    leave: bool = True
    """Stop waiting as well, and let the next one who waits have its turn."""


Request = AskGrant | AskConfirm | AskRelease


class Granted(NamedTuple):
    """This server leased the name to the asker, under this counter."""

    counter: int


class Occupied(NamedTuple):
    """This server leased the name to somebody else, or keeps it for one who waited."""

    counter: int
    """The highest ever granted or accepted for the name there."""
    left: float
    """Seconds until it ends by itself."""
    token: int = 0
    """Of who holds it; 0 when it is kept for a waiter."""
    about: str = ""
    rank: int = 0
    """How many wait before the asker."""


class Barred(NamedTuple):
    """This server lost its data, or may have, and is kept out for so many seconds."""

    left: float


class Confirmed(NamedTuple):
    """Accepted: the lease there is the asker's, and the counter is not below its token."""

    token: int


class NotYours(NamedTuple):
    """The lease there is not the asker's, or was granted under a counter above its token."""


class Returned(NamedTuple):
    """Nothing of the asker's is there any more; and whether there had been something."""

    held: bool


Reply = Granted | Occupied | Barred | Confirmed | NotYours | Returned
Outcome = Reply | EngineError | None
"""What is known of one server: its reply, why there is none, or None while it may still come."""


class Won(NamedTuple):
    """A majority has accepted this token."""

    token: int


class Behind(NamedTuple):
    """A majority granted, under different counters: the highest is the token if those below move up to it."""

    token: int
    laggards: tuple[int, ...]


class Beaten(NamedTuple):
    """Not to be had now. `split`: as far as is known nobody has a majority, so trying again soon makes sense."""

    split: bool


class Unreachable(NamedTuple):
    """Too few servers answered."""


Verdict = Won | Behind | Beaten | Unreachable


def majority_of(servers: int) -> int:
    """How many servers any two majorities share one of."""
    return servers // 2 + 1


def judge_grants(outcomes: Sequence[Outcome], *, final: bool) -> Verdict | None:
    """What the answers to `AskGrant` mean; None: not enough of them yet. `final`: no more will be waited for."""
    needed, pending = majority_of(len(outcomes)), outcomes.count(None)
    if pending and not final and len(outcomes) - pending < needed:
        return None
    counters = {server: one.counter for server, one in enumerate(outcomes) if type(one) is Granted}
    if len(counters) >= needed:
        granted = list(counters.values())
        for counter in granted[: len(granted) - needed + 1]:  # one of these has a majority, or none has
            if granted.count(counter) >= needed:
                return Won(counter)
        token = max(counters.values())
        return Behind(token, tuple(server for server, one in counters.items() if one < token))
    occupied = [one for one in outcomes if type(one) is Occupied]
    answered = len(counters) + len(occupied)
    if not final and pending and len(counters) + pending >= needed:
        return None
    if answered >= needed:
        by_one = Counter(one.token for one in occupied).most_common(1)
        return Beaten(split=not by_one or by_one[0][1] < needed)
    return None if not final and pending else Unreachable()  # what the others say belongs to the failure


def judge_second_phase(servers: int, behind: Behind, counted: int, outcomes: Sequence[Outcome]) -> bool | None:
    """Whether a majority has accepted the token, now that those who `counted` and lagged behind were asked to move up.

    None: not known yet. The outcomes of servers that were not asked are ignored: a grant that came too late to be
    counted must not be confirmed.
    """
    accepted = counted - len(behind.laggards)
    asked = [outcomes[server] for server in behind.laggards]
    accepted += sum(type(one) is Confirmed and one.token == behind.token for one in asked)
    if accepted >= majority_of(servers):
        return True
    return None if accepted + asked.count(None) >= majority_of(servers) else False


def judge_renewal(outcomes: Sequence[Outcome]) -> bool | None:
    """Whether a majority accepted the token once more; None: it cannot be known (yet).

    A server that is kept out would not accept it before the lease is over, so that is a refusal as well.
    """
    needed = majority_of(len(outcomes))
    if sum(type(one) is Confirmed for one in outcomes) >= needed:
        return True
    refused = sum(type(one) is NotYours or type(one) is Barred for one in outcomes)
    return False if refused > len(outcomes) - needed else None


def judge_release(outcomes: Sequence[Outcome], *, final: bool = False) -> bool | None:
    """Once nothing is left at a majority: whether the lease had been there. None: not known yet.

    The name is free then, whatever the others still keep: nobody can have a majority of them. One server alone that
    still had the lease proves nothing while others may tell that it was overtaken; only when no more answers are to
    come is it believed, for those who had no trace of it may have missed the grant.
    """
    needed = majority_of(len(outcomes))
    if len(outcomes) - outcomes.count(None) < needed:
        return None
    answers = [type(one) is Returned and one.held for one in outcomes if type(one) is Returned or type(one) is Barred]
    held = sum(answers)
    if len(answers) < needed:
        return None
    if held >= needed:
        return True
    if len(answers) - held > len(outcomes) - needed:
        return False
    return held > 0 if final or None not in outcomes else None


def failure_of(outcomes: Sequence[Outcome], addresses: Sequence[str]) -> EngineError:
    """The error for a round that too few servers answered; it says of each one why."""
    reasons = [reason_of(outcome, address) for outcome, address in zip(outcomes, addresses, strict=True)]
    fine = sum(isinstance(one, Granted | Occupied | Confirmed | NotYours | Returned) for one in outcomes)
    needed = majority_of(len(outcomes))
    kind = EngineUnavailable
    if any(one is None or isinstance(one, OutcomeUnknown) for one in outcomes):
        kind = OutcomeUnknown  # type: ignore[assignment]
    return kind(
        f"{fine} of {len(outcomes)} Redis servers answered and {needed} are needed: {'; '.join(filter(None, reasons))}"
    )


def reason_of(outcome: Outcome, address: str) -> str:
    """Why a server did not do its part; nothing when it did."""
    match outcome:
        case None:
            return f"{address} had not answered by then"
        case EngineError():
            return str(outcome)
        case Barred(left):
            return (
                f"{address} is new, or lost its data, or was restarted without a log of every write, and is kept out "
                f"for another {left:.0f} s"
            )
        case _:
            return ""
