"""Requests that belong to a place or to a session, and what must be kept in mind of those that got no answer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from leasehold.engines.consul_sessions import Place, Session, Sessions
from leasehold.errors import EngineError, EngineUnavailable, OutcomeUnknown
from leasehold.wires.consul import MOST_OPERATIONS, ConsulWire, Entry, Operation, Refused, deleting
from leasehold.wires.consul_errors import Denied, SessionGone

FRESH: Final = 1 / 6
"""A session that has spent this share of its TTL is renewed before a lease is hung on it."""
PEEK: Final = 0.003
"""How often one looks whether somebody else has made the session, in seconds."""
FAREWELL: Final = 0.5
"""How long a client that is closed takes to end its sessions, in seconds."""


class Requests:
    """What is asked of Consul, in one world. Every request leaves within its `until`, once."""

    def __init__(self, wire: ConsulWire, sessions: Sessions, label: str) -> None:
        self._wire, self._sessions, self._label = wire, sessions, label
        self._world = wire.world

    async def change(
        self, place: Place, operations: Sequence[Operation], until: float, *, unread: int = 0
    ) -> list[Entry] | Refused:
        """Send a transaction that may change a place's key, and keep in mind that it may still be carried out later.

        The doubt is there before the request is sent: so no interruption, wherever it strikes, can lose it. Of the
        results, so many as are `unread` nobody wants to see, from the first.
        """
        doubt, place.uncertain = place.uncertain, True
        try:
            outcome = await self._wire.txn(operations, until, unread=unread)
        except (EngineUnavailable, SessionGone, Denied):  # it was not carried out
            place.uncertain = doubt
            raise
        place.uncertain = doubt
        return outcome

    async def confirm(self, session: Session, until: float, share: float = FRESH) -> str:
        """Have a session that Consul knows and that has not spent more than a share of its TTL; returns its id.

        The request that needs the session is not sent before that; so whatever fails here, it was not carried out.
        """
        try:
            while session.id is None:
                await self._create(session, until)
            now = self._world.now()
            if now >= session.renew_at(share):
                session.claim(now)
                if not await self.keep_alive(session, until):
                    raise SessionGone("consul has ended the session")
        except OutcomeUnknown as error:
            raise EngineUnavailable(str(error)) from None
        return session.id

    async def _create(self, session: Session, until: float) -> None:
        now = self._world.now()
        if session.dead:
            raise SessionGone("the session was ended")
        if now < session.renew_at(0.0):  # somebody else is about to
            if now >= until:
                raise EngineUnavailable("there was no time left to wait for a session of consul")
            await self._world.sleep(min(PEEK, until - now))
            return
        session.claim(now)
        try:
            made = await self._wire.create_session(session.terms, self._label, until)
        finally:
            session.unclaim()
        if session.id is None:  # else another one was quicker, and this one lapses
            session.confirm(now)
            session.id = made

    async def keep_alive(self, session: Session, until: float) -> bool:
        """Let a session last for another TTL; False when it has ended."""
        sent_at = self._world.now()
        if session.id is None or session.dead or not await self._wire.renew_session(session.id, until):
            self._sessions.bury(session)
            return False
        session.confirm(sent_at)
        return True

    async def refresh(self, session: Session, until: float) -> bool:
        """Renew a session, and see to it that what was given back stays away; False when the session has ended."""
        if not await self.keep_alive(session, until):
            return False
        debts = list(session.debts)
        for start in range(0, len(debts), MOST_OPERATIONS):
            some = [deleting(key) for key in debts[start : start + MOST_OPERATIONS]]
            with contextlib.suppress(EngineError):  # tried again with the next renewal
                await self._wire.txn(some, until)
        return True

    async def end_idle(self, *, all_idle: bool, until: float) -> None:
        """End sessions that nothing hangs on; what fails here, or has no time left, lapses by itself."""
        for session in self._sessions.take_out(all_idle=all_idle):
            with contextlib.suppress(EngineError):
                await self._wire.destroy_session(session.id or "", until)
