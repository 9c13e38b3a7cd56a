"""The sessions of one client, and the attempts and leases whose nodes hang on them.

There is one session for each TTL, so that taking a name is one request: the session is there already. All leases of a
TTL end together with it. Those who wait hang on another session, which is short: one that died, or hangs, holds up
those behind it for a moment only, however long its TTL is. Whoever's turn has come moves its node to the session of its
TTL. Nobody ends a session that is no longer used: it lapses, since nobody keeps it alive.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Final

from leasehold.core.engine import Incumbent, Want
from leasehold.engines.zookeeper_queue import LENGTH_OF_ID, Blockade, Node, node_in
from leasehold.wires.zookeeper_session import Session

WAITING: Final = 2.0
"""The timeout of the session that waiters hang on; the ensemble may grant a longer one."""
LEFT: Final = 1 / 4
"""No lease begins on a session that was not heard of until so much of its timeout is left: it may end meanwhile."""
MOST_CROWDED: Final = 1024
"""How many names are remembered that others had. One more or less costs a round trip, no more."""


def timeout_for(ttl: float, tick: float) -> float:
    """The timeout of the session for leases of a TTL.

    Renewals come once in a third of the TTL, at times a little late, and what one proves is up to a tick and a quarter
    older than the one before. With this much more than the TTL, what is proved always lasts until the next renewal.
    """
    return ttl * 1.4 + tick * 1.5


def _is_spent(session: Session, now: float) -> bool:
    return session.seems_over(now + session.timeout * LEFT)


class Company:
    """Those of one client who want the same name and have patience, until each has it or gives up."""

    __slots__ = ("incumbent", "latest", "members", "oldest")

    def __init__(self) -> None:
        self.members: dict[str, None] = {}
        """By holder. Not their number: an interruption could have one counted for good, or never, and all would expect
        company."""
        self.latest: Place | None = None
        """Who of those who want the name for themselves alone stands last in the queue, as far as is known."""
        self.oldest: Node | None = None
        """Whose node was the first when one of them looked; None when somebody has to look again."""
        self.incumbent: Incumbent | None = None
        """Who that was."""


class Place:
    """One attempt, or the lease that became of it: its node, and what is known of its place in the queue."""

    __slots__ = ("_mark", "blockade", "company", "doubt", "given_up", "granted", "is_next", "lease", "session", "token",
                 "version", "want")  # fmt: skip

    def __init__(self, want: Want, lease: Session) -> None:
        self.want, self.lease = want, lease
        self._mark = os.urandom(LENGTH_OF_ID // 2).hex()
        """The name of its node, or its id while it has none: of thousands who wait, little more is kept."""
        self.session: Session | None = None
        """What its node hangs on: the session of its TTL, or the one for waiters."""
        self.doubt: Session | None = None
        """The session by which something was sent whose outcome is not known."""
        self.given_up = False
        """Whether it was to be given back."""
        self.company: Company | None = None
        """Those of this client who want the same name; only while it has patience and not the name."""
        self.lose_node()

    def lose_node(self) -> None:
        """It has no node, or none any more."""
        self._mark = self.id
        self.token = 0
        self.version = -1
        """How often nodes of this name had been moved when the queue was last looked at."""
        self.granted = self.is_next = False
        self.blockade: Blockade | None = None
        """What it waits for; None when that is not known, or when it holds the name."""
        self.session = None

    @property
    def node(self) -> Node | None:
        """Its node, if it has one."""
        return node_in(self._mark) if len(self._mark) != LENGTH_OF_ID else None

    @property
    def id(self) -> str:
        """Its mark in the name of its node. Not the holder's id, which others must not see."""
        node = self.node
        return self._mark if node is None else node.id

    def has_node(self, node: Node, token: int, session: Session) -> None:
        """Its node is there. What was before another node of it tells nothing of this one."""
        self._mark, self.token, self.session = node.name, token, session
        self.is_next, self.blockade = False, None

    @property
    def incumbent(self) -> Incumbent | None:
        """Who held the name when somebody of this client looked."""
        return self.company.incumbent if self.company is not None else None

    def unblocked(self, token: int | None) -> None:
        """What it waited for is gone; `token` is that of the node that it was, if one was seen."""
        blockade = self.blockade
        if blockade is not None:
            self.is_next = blockade.is_all and self.want.mode == "exclusive"
            self.blockade = blockade.after(token) if token is not None else None

    @property
    def waits(self) -> bool:
        """Whether its node hangs where those of waiters do."""
        return self.node is not None and self.session is not self.lease


class Places:
    """What one client has on an ensemble. Threads share it."""

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._lock = threading.Lock()
        self._leases: dict[float, Session] = {}
        self._waiting: Session | None = None
        self._retired: list[Session] = []
        self._places: dict[str, Place] = {}
        self._companies: dict[str, Company] = {}
        """By name."""
        self._crowded: dict[str, bool] = {}
        """Names that others had when somebody came for them lately, and whether it waited; the latest is the last."""

    def known(self, holder: str) -> Place | None:
        """What is known of an attempt."""
        return self._places.get(holder)

    def place_for(self, want: Want, now: float) -> Place:
        """The place of an attempt, on sessions that are not over."""
        with self._lock:
            place = self._places.get(want.holder)
            if place is None:
                place = self._places[want.holder] = Place(want, self._lease_session(want.ttl, now))
            if place.session is not None and place.session.dead:
                place.lose_node()
            # Nobody keeps it alive while one waits: who moved up to one that is about to end would end with it.
            unused = place.lease is not place.session and place.lease is not place.doubt
            if place.lease.dead or (unused and _is_spent(place.lease, now)):
                place.lease = self._lease_session(want.ttl, now)
            return place

    def lease_session(self, ttl: float, now: float) -> Session:
        """The session for leases of this TTL."""
        with self._lock:
            return self._lease_session(ttl, now)

    def _lease_session(self, ttl: float, now: float) -> Session:
        ttl = math.ceil(ttl * 10) / 10
        session = self._leases.get(ttl)
        if session is None or _is_spent(session, now):
            self._retire(session)
            session = self._leases[ttl] = Session(ttl, timeout_for(ttl, self._tick), self._tick)
        return session

    def waiting_session(self, now: float) -> Session:
        """The session for those who wait, and for mere questions."""
        with self._lock:
            if self._waiting is None or self._waiting.seems_over(now):
                self._retire(self._waiting)
                self._waiting = Session(0.0, WAITING, self._tick)
            return self._waiting

    def _retire(self, session: Session | None) -> None:
        self._retired = [one for one in (*self._retired, session) if one is not None and not one.dead]
        for holder, place in list(self._places.items()):
            if place.given_up and all(one is None or one.dead for one in (place.session, place.doubt)):
                self._part(place)
                del self._places[holder]

    def of_owner(self, owner: int, place: Place) -> Session | None:
        """The session with this id, if it is one that the place's node could hang on."""
        candidates = (place.lease, place.doubt, place.session, self._waiting)
        return next((one for one in candidates if one is not None and one.id == owner and not one.dead), None)

    def forget(self, holder: str) -> None:
        """The attempt is over and its node is gone."""
        with self._lock:
            place = self._places.get(holder)
            if place is not None:
                self._part(place)
                self._places.pop(holder, None)  # last: one who was interrupted before that comes again

    # Company

    def expect_crowd(self, place: Place, now: float) -> bool:
        """Whether the last one of this client who queued for the name had to wait, a moment ago."""
        waiting = self._waiting
        return self._crowded.get(place.want.name, False) and waiting is not None and not waiting.seems_over(now)

    def expect_nobody(self, name: str) -> bool:
        """Whether nobody else had the name when the last one of this client came for it, as far as is remembered."""
        return name not in self._crowded

    def note_crowd(self, name: str, *, crowded: bool, waited: bool = True) -> None:
        """Somebody has come for the name, and others had it or not: the next one expects the same.

        Who is alone may be the first of a crowd that comes back: where somebody had to wait, the next one looks again.
        """
        with self._lock:
            had_waited = self._crowded.pop(name, False)
            if crowded or had_waited:
                self._crowded[name] = crowded and (waited or had_waited)
                if len(self._crowded) > MOST_CROWDED:
                    del self._crowded[next(iter(self._crowded))]

    def comes(self, place: Place) -> bool:
        """Somebody has come who has patience; says whether others of this client are there who want the same name."""
        with self._lock:
            company = place.company
            if company is None:
                company = place.company = self._companies.setdefault(place.want.name, Company())
            company.members[place.want.holder] = None
            return len(company.members) > 1

    def joined(self, place: Place) -> Node | None:
        """A node was created at the end of the queue; returns that of another of this client, which was there before.

        The two need not stand side by side: others may have come in between.
        """
        with self._lock:
            company = place.company
            ahead = company.latest if company is not None else None
            if company is None or (ahead is not None and ahead.token >= place.token):
                return None
            company.latest = place
            return ahead.node if ahead is not None and ahead.waits else None

    def got(self, place: Place) -> None:
        """The name was granted."""
        if place.company is not None:
            with self._lock:
                self._part(place)

    def _part(self, place: Place) -> None:
        company, name = place.company, place.want.name
        if company is not None:
            company.members.pop(place.want.holder, None)
            if company.latest is place:
                company.latest = None
            if not company.members and self._companies.get(name) is company:
                del self._companies[name]
            place.company = None  # last: one who was interrupted before that comes again

    def given_up(self, session: Session) -> list[Place]:
        """What should have been given back by now, and may still be there."""
        return [one for one in list(self._places.values()) if one.given_up and session in (one.session, one.doubt)]

    def sessions(self) -> tuple[list[Session], list[Session]]:
        """The sessions that nothing hangs on, and the others."""
        with self._lock:
            every = [one for one in (*self._leases.values(), self._waiting, *self._retired) if one is not None]
            used = {id(one) for place in self._places.values() for one in (place.session, place.doubt)}
            return [one for one in every if id(one) not in used], [one for one in every if id(one) in used]

    def forked(self) -> None:
        """In a forked child: all of it is the parent's."""
        self._lock = threading.Lock()
        for session in (*self._leases.values(), self._waiting, *self._retired):
            if session is not None:
                session.forked()
        self._leases, self._waiting, self._retired, self._places = {}, None, [], {}
        self._companies, self._crowded = {}, {}
