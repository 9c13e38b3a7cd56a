"""Who stands for election: whether it is fit for it, how long its work has to stop, and when it tries again."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from leasehold.errors import EngineError, LeaseholdError, Misuse, NotAcquired, quoted
from leasehold.keeping import log
from leasehold.names import check_name, check_ttl, check_wait
from leasehold.patterns.ranks import Leases, Ranks
from leasehold.patterns.terms import AnyTerm, end_process

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Between two times that a candidate could not stand, because its engine did not answer, in seconds."""

ClientT = TypeVar("ClientT")


class AnyElection(ABC, Generic[ClientT]):
    """What elections of both worlds have in common."""

    def __init__(
        self,
        locks: ClientT,
        name: str,
        *,
        ttl: float = 15.0,
        healthy: Callable[[], bool] | None = None,
        stop_within: float = 10.0,
        at_deadline: Callable[[Any], object] = end_process,
        priority: int | None = None,
        candidate: str | None = None,
    ) -> None:
        """Choose `name` for what is led.

        A candidate whose `healthy` says no, or raises, does not stand, and a leader then stops. Work that was told to
        stop has `stop_within` seconds, and never longer than its lease; `at_deadline` is called when it has not
        stopped by then: by default the process ends at once.

        With a `priority`, from 0 to 3, a candidate gives way to those of a higher one, also as a leader. `candidate` is
        the name by which a leader can resign in favour of this one.
        """
        self._name = check_name(name)
        self._ttl = check_ttl(ttl)
        self._stop_within = check_wait(stop_within, what="stop_within")
        if healthy is not None and not callable(healthy):
            raise Misuse(f"healthy is a function that answers True or False, not {quoted(healthy)}")
        if not callable(at_deadline):
            raise Misuse(f"at_deadline is a function that takes the term, not {quoted(at_deadline)}")
        self._locks: ClientT = locks
        self._healthy, self._at_deadline = healthy, at_deadline
        self._ranks = Ranks(self._leases(locks), name, self._ttl, priority=priority, candidate=candidate)

    @abstractmethod
    def _leases(self, locks: ClientT) -> Leases:
        """The leases of this election's world."""

    @property
    def name(self) -> str:
        """What is led."""
        return self._name

    @property
    def _courtesy(self) -> float:
        """How long one that gave way stays away before it comes back."""
        return min(self._ttl / 10, 0.5)

    async def _resign_if_outranked(self, term: AnyTerm) -> None:
        try:
            if await self._ranks.is_outranked():
                term.resign("a candidate of higher priority stands")
        except EngineError as error:
            log().debug("%r: no other candidate can be seen: %s", term, error)

    def _is_healthy(self) -> bool:
        """What `healthy` says; one that cannot tell is not."""
        try:
            return self._healthy is None or bool(self._healthy())
        except Exception:  # noqa: BLE001 - whatever it was: it is logged, and there is an answer
            log().exception("%r: healthy() failed, which counts as no", self)
            return False

    def _pause_after(self, error: LeaseholdError, failures: int) -> float:
        """How long a candidate that could not stand stays away; raises what does not get better by itself."""
        if isinstance(error, Misuse):
            raise error
        log().warning("%r could not stand for election, and will again: %s", self, error)
        longest: float = min(FIRST_PAUSE * 2 ** min(failures, 10), LONGEST_PAUSE)
        return longest * (0.5 + random.random() / 2)

    def _may_stand(self) -> None:
        if not self._is_healthy():
            raise NotAcquired(self._name, wait=0.0, holder=None, token=None)

    def _look(self, term: AnyTerm) -> None:
        """Tell the work to stop when there is a reason, while there is still time to."""
        if term.stopping:
            return
        if term.remaining <= self._ttl / 3:
            # Renewals come at a third of the TTL: two of them are missing.
            term.resign("its lease was not renewed in time")
        elif not self._is_healthy():
            term.resign("it is not healthy")

    def _must_have_stopped(self, term: AnyTerm) -> bool:
        """Whether the time is over that work has which was told to stop; never longer than its lease."""
        told_at = term._told_at
        return told_at is not None and (term.remaining <= 0 or time.monotonic() >= told_at + self._stop_within)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {quoted(self._name)} ttl={self._ttl:g}>"
