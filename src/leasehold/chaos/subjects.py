"""From the name of a library to the subject of a run."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.peers import PEERS
from leasehold.chaos.subject import Mode, Subject
from leasehold.errors import Misuse, quoted


@dataclass(frozen=True, slots=True)
class Offer:
    """What a library can do."""

    modes: frozenset[Mode]
    several: bool
    engines: tuple[str, ...] | None
    """On which it runs; None: on all."""


def offer_of(name: str) -> Offer:
    """What a library can do, without a connection."""
    if name == LeaseholdSubject.name:
        return Offer(LeaseholdSubject.modes, several=True, engines=None)
    if name not in PEERS:
        raise Misuse(f"there is no subject {quoted(name)}; there are {LeaseholdSubject.name}, {', '.join(PEERS)}")
    peer = PEERS[name]
    if not peer.installed():
        raise Misuse(f"{peer.label} is not installed here: pip install {peer.distribution}")
    return Offer(peer.modes, several=False, engines=peer.engines)


def open_subject(name: str, url: str, namespace: str) -> Subject:
    """The library that workers ask for locks, connected to this engine."""
    return PEERS[name](url, namespace) if name in PEERS else LeaseholdSubject(url, namespace)
