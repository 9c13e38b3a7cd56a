"""The accept rule: which tokens a resource takes. Integers only, and the same for every kind of resource.

A resource remembers two numbers: the highest token that it has *seen*, which is its floor, and the highest that has
*written*. A call is judged by a `Claim`, which holds all that the resource has to compare, so that the comparison and
the write can be one atomic step there, in SQL, in a script, or in whatever the resource speaks:

>>> claim = Rule().claim("account/42", 34, writes=True)
>>> claim.refusal(seen=33, written=33), claim.refusal(seen=34, written=34), claim.refusal(seen=NEVER, written=NEVER)
(None, None, None)
>>> print(claim.refusal(seen=35, written=NEVER))
token 34 is stale for 'account/42': token 35 has been seen there; a later holder is at work, so nothing was written
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from leasehold.errors import Misuse, StaleToken, TokenJump, TokenUsed, quoted
from leasehold.names import HIGHEST_TOKEN, check_name, check_token
from leasehold.watching import refused

NEVER = -1
"""Stands for a token where none has been seen, or none has written: below every token."""

DAY = 86_400_000_000
"""A day in the unit of Leasehold's own tokens: wider than any mistake about time zones."""


class HasToken(Protocol):
    """Anything that carries a token, such as a lease."""

    @property
    def token(self) -> int:
        """The fencing token."""
        ...


def token_of(token: int | HasToken) -> int:
    """Return the checked integer, given as such or by what carries it."""
    return check_token(getattr(token, "token", token))


class Claim(NamedTuple):
    """One call, in the numbers that the resource compares.

    It is accepted if ``lowest <= seen <= token`` and ``written <= most_written``. Then `seen` becomes `token`, and so
    does `written` if the call writes.
    """

    resource: str
    token: int
    lowest: int
    """A lower floor than this means an absurd jump; `NEVER` when any floor will do."""
    writes: bool
    once: bool

    @property
    def most_written(self) -> int:
        """The highest token that may have written already."""
        return self.token - 1 if self.once else self.token

    @property
    def mark(self) -> int:
        """What the call adds to the marks of writers."""
        return self.token if self.writes else NEVER

    def refusal(self, seen: int, written: int) -> StaleToken | TokenUsed | TokenJump | None:
        """Return why a resource with these marks refuses the call, or None when it accepts."""
        if self.token < seen:
            return refused(StaleToken(self.resource, token=self.token, seen=seen))
        if seen < self.lowest:
            known = None if seen == NEVER else seen
            return refused(TokenJump(self.resource, token=self.token, seen=known, most=self.token - self.lowest))
        if written > self.most_written:
            return refused(TokenUsed(self.resource, token=self.token))
        return None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a fence needs to know to turn calls into claims.

    A token may stand at most `jump_limit` above the floor or above the wall clock in microseconds, whichever is
    higher. Leasehold's tokens *are* wall-clock microseconds where the engine has no better counter: a resource that
    nobody touched for a month legitimately sees a jump of a month, so a limit above the floor alone could not tell a
    long rest from a poisoned token. Counters, such as etcd's revisions, stay far below the clock and always pass.
    """

    jump_limit: int = DAY

    def __post_init__(self) -> None:
        """Refuse a limit that is no limit."""
        if type(self.jump_limit) is not int or not 0 < self.jump_limit <= HIGHEST_TOKEN:
            raise Misuse(f"jump_limit must be an int from 1 to 2**63 - 1, not {quoted(self.jump_limit)}")

    def claim(
        self, resource: str, token: int | HasToken, *, writes: bool, once: bool = False, allow_jump: bool = False
    ) -> Claim:
        """Check what the caller gave, before anything is sent, and return what the resource has to compare."""
        number = token_of(token)
        credible = allow_jump or number <= time.time_ns() // 1000 + self.jump_limit
        lowest = NEVER if credible else number - self.jump_limit
        return Claim(check_name(resource, what="resource"), number, lowest, writes, once)
