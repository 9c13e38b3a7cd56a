"""Single requests to etcd, and what keeps a session alive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from leasehold.engines.etcd_sessions import Place, Session, Sessions
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_errors import LeaseExists, LeaseGone
from leasehold.wires.etcd_messages import Malformed, Outcome

if TYPE_CHECKING:
    from leasehold.wires.etcd import Wire

T = TypeVar("T")

FRESH: Final = 1 / 6
"""A session is kept alive before a lease is hung on it, if this share of the lease would be over already."""

LEFT_TO_OTHERS: Final = 1 / 2
"""Up to this share of its TTL, keeping a session alive is left to one who said that it would: it may be interrupted."""


class Requests:
    """What is asked of one cluster, in one world. Every request leaves within its `until`, once."""

    def __init__(self, wire: Wire, sessions: Sessions, address: str) -> None:
        self._wire, self._sessions, self._address = wire, sessions, address
        self.world = wire.world

    async def ask(
        self, method: str, request: bytes, until: float, read: Callable[[bytes], T], place: Place | None = None
    ) -> T:
        """Send one request, and read its answer; `place` is the one whose key it may change."""
        if place is None:
            return self._read(await self._wire.call(method, request, until), read)
        # It may still be carried out later, unless it is answered. The doubt is there before the request is sent: so no
        # interruption, wherever it strikes, can lose it.
        doubt, place.uncertain = place.uncertain, True
        try:
            answer = await self._wire.call(method, request, until)
        except (EngineUnavailable, LeaseGone):  # it was not carried out
            place.uncertain = doubt
            raise
        place.uncertain = doubt
        return self._read(answer, read)

    def _read(self, answer: bytes, read: Callable[[bytes], T]) -> T:
        try:
            return read(answer)
        except Malformed as error:
            raise EngineError(f"etcd at {self._address} sent an answer that cannot be read: {error}") from None

    async def txn(
        self,
        conditions: list[bytes],
        then: list[bytes],
        otherwise: list[bytes],
        until: float,
        place: Place | None = None,
    ) -> Outcome:
        """Send a transaction: carry out `then` if all conditions hold, and else `otherwise`."""
        request = messages.txn(conditions, then, otherwise)
        outcome = await self.ask(messages.TXN, request, until, messages.outcome_of, place)
        if not conditions and not outcome.succeeded:
            raise EngineError(f"etcd at {self._address} said that a condition failed where there was none")
        if len(outcome.found) != sum(map(messages.is_look, then if outcome.succeeded else otherwise)):
            raise EngineError(f"etcd at {self._address} did not answer all questions of a transaction")
        return outcome

    async def confirm(self, session: Session, until: float, age: float) -> None:
        """Have a session that etcd knows and that was kept alive within the last `age` seconds.

        The request that needs the session is not sent before that; so whatever fails here, it was not carried out.
        """
        try:
            now = self.world.now()
            if session.confirmed_at is None:
                try:
                    request = messages.lease_grant(session.id, session.seconds)
                    ttl = await self.ask(messages.GRANT, request, until, messages.ttl_of_lease)
                    self._note_ttl(session, now, ttl)
                    return
                except LeaseExists:  # an earlier request got there, or another thread's
                    now = self.world.now()
            elif now < session.refresh_at(age) and session.is_fresh(now, session.ttl * LEFT_TO_OTHERS):
                return
            session.claim(now)
            if not await self.keep_alive(session, until):
                raise LeaseGone(f"etcd at {self._address} has ended the session")
        except OutcomeUnknown as error:
            raise EngineUnavailable(str(error)) from None

    async def keep_alive(self, session: Session, until: float) -> bool:
        """Let a session last for another TTL; False when it is over."""
        sent_at = self.world.now()
        ttl = await self.ask(messages.KEEP_ALIVE, messages.lease_id(session.id), until, messages.ttl_of_lease)
        if ttl <= 0 or session.dead:
            self._sessions.bury(session)
            return False
        self._note_ttl(session, sent_at, ttl)
        return True

    def _note_ttl(self, session: Session, sent_at: float, ttl: int) -> None:
        if ttl < session.seconds:
            raise EngineError(f"etcd at {self._address} granted {ttl} s instead of {session.seconds} s")
        session.confirm(sent_at, float(ttl))

    async def refresh(self, session: Session, until: float) -> bool:
        """Keep a session alive, and see to it that what was given back stays away; False when the session is over."""
        if not await self.keep_alive(session, until):
            return False
        debts = list(session.debts)
        for start in range(0, len(debts), messages.MOST_OPERATIONS):
            some = [messages.deleting(messages.delete(key)) for key in debts[start : start + messages.MOST_OPERATIONS]]
            with contextlib.suppress(EngineError):  # tried again with the next refresh
                await self.txn([], some, [], until)
        return True
