"""An election: the leader writes down what it decides, again and again, as long as its term lasts."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import ClassVar

from leasehold import LeaseLost, NotAcquired
from leasehold.chaos.hand import Grip, Hand
from leasehold.chaos.leasehold_subject import LeaseholdSubject
from leasehold.chaos.workloads.register import Register
from leasehold.patterns.election import Election, Term

DECISIONS = 4
"""How many decisions a leader takes at most before it resigns."""


class _Office:
    """A term, as a run sees what is held."""

    def __init__(self, block: AbstractContextManager[Term]) -> None:
        """Stand for election; raises `NotAcquired`."""
        self._block = block
        self.term = block.__enter__()
        self._until = time.monotonic() + self.term.remaining

    @property
    def token(self) -> int:
        """That of the term."""
        return self.term.token

    @property
    def until(self) -> float:
        """When the term ends unless it is prolonged."""
        remaining = self.term.remaining
        if remaining > 0:
            self._until = time.monotonic() + remaining
        return self._until

    def believes(self) -> bool:
        """Whether it may still lead."""
        return self.term.remaining > 0

    def release(self) -> bool:
        """End the term; False when it had ended before."""
        try:
            self._block.__exit__(None, None, None)
        except LeaseLost:
            return False
        return True


class Elections(Register):
    """Lead for a while; each decision replaces the one before it."""

    name: ClassVar[str] = "election"
    summary: ClassVar[str] = "be elected, write down decisions for as long as the term lasts, resign"
    only_leasehold: ClassVar[bool] = True

    def lap(self, hand: Hand) -> None:
        """Stand for election once."""
        subject = hand.subject
        assert isinstance(subject, LeaseholdSubject)
        election = Election(subject.locks, self.name, ttl=hand.terms.ttl)
        offices: list[_Office] = []

        def stand(_grip: Grip) -> _Office | None:
            try:
                offices.append(_Office(election.lead(wait=hand.terms.wait)))
            except NotAcquired:
                return None
            return offices[0]

        with hand.holding_by(stand, self.name) as grip:
            for _ in range(DECISIONS) if grip is not None else ():
                if grip is None or offices[0].term.stopping or not self.change_all(hand, grip):
                    break
