"""What a checker says about a history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from leasehold.chaos.history import Event

Status = Literal["held", "violated", "unknown", "not asked"]
Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Violation:
    """One place in a history that breaks a claim."""

    at: float
    text: str
    """For people: who did what, and why that must not be."""
    events: tuple[Event, ...] = ()
    """What shows it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one checker found."""

    name: str
    claim: str
    """What is claimed, in a sentence."""
    status: Status
    judged: int
    """How many operations (or leases, or whatever `of` says) the claim was held against."""
    of: str = "operations"
    violations: tuple[Violation, ...] = ()
    shown: tuple[Violation, ...] = ()
    """What looks like a violation and is not one of the subject: a plain resource that no fence guards, or a holder
    that a fault stopped or robbed of its lease."""
    figures: dict[str, Figure] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Measured times in seconds, for distributions."""
    why: str = ""
    """Why it is unknown, or was not asked."""


def found(
    name: str,
    claim: str,
    *,
    judged: int,
    of: str,
    violations: list[Violation],
    shown: list[Violation] | None = None,
    figures: dict[str, Figure] | None = None,
    samples: dict[str, tuple[float, ...]] | None = None,
    nothing: str = "nothing of the kind happened",
    unknown: str = "",
) -> Verdict:
    """The verdict that follows from what was found.

    A violation outweighs everything; then what could not be judged; with nothing to judge the claim was not asked.
    """
    status: Status = "violated" if violations else "unknown" if unknown else "held" if judged else "not asked"
    return Verdict(
        name,
        claim,
        status,
        judged,
        of,
        tuple(sorted(violations, key=lambda one: one.at)),
        tuple(sorted(shown or [], key=lambda one: one.at)),
        figures or {},
        samples or {},
        {"unknown": unknown, "not asked": nothing}.get(status, ""),
    )
