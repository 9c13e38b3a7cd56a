"""From the name of a library to the subject of a run."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.subject import Mode, Subject
from leasehold.errors import Misuse, quoted


@dataclass(frozen=True, slots=True)
class Offer:
    """What a library can do."""

    modes: frozenset[Mode]
    several: bool


def offer_of(name: str) -> Offer:
    """What a library can do, without a connection."""
    if name != LeaseholdSubject.name:
        raise Misuse(f"there is no subject {quoted(name)}; there is {LeaseholdSubject.name}")
    return Offer(LeaseholdSubject.modes, several=True)


def open_subject(name: str, url: str, namespace: str) -> Subject:
    """The library that workers ask for locks, connected to this engine."""
    offer_of(name)
    return LeaseholdSubject(url, namespace)
