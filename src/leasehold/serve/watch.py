"""Keeps the roster true while people look at it, and tells them when there is news."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from leasehold.core.engine import NameStatus
from leasehold.errors import EngineError
from leasehold.roster import Findings, Roster, Row, Scout, View
from leasehold.serve.books import Books

if TYPE_CHECKING:
    from leasehold.client import Leasehold

SHARE: Final = 0.25
"""The part of the time that rounds may keep the engine busy."""
SLOWER_UNSEEN: Final = 5
"""Rounds are so many times rarer while nobody looks."""
MOST_SHOWN: Final = 500
"""Names on people's screens that are looked at in each round."""
MOST_GROUPS: Final = 50
_log = logging.getLogger("leasehold")
_PARTITION: Final = re.compile(r"(.+)/([0-9]{1,6})", re.DOTALL)
_MEMBERS: Final = "/members"


class Viewer:
    """One page that is open somewhere: what it wants to see, and what is on its screen."""

    def __init__(self, view: View, start: int, limit: int) -> None:
        self.view, self.start, self.limit = view, start, limit
        self.shown: list[str] = []


class Watch:
    """The roster and its rounds. Belongs to one event loop; the engine is asked in a thread."""

    def __init__(self, locks: Leasehold, *, every: float, namespace: str = "", elections: Iterable[str] = ()) -> None:
        self.locks, self.every, self.namespace = locks, every, namespace
        self.elections = tuple(dict.fromkeys(elections))
        self.roster = Roster()
        self.books = Books(locks, namespace)
        self.problem: str | None = None
        self.viewers: list[Viewer] = []
        self.rounds = 0
        self._scout = Scout(locks)
        self._news = asyncio.Condition()
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._round()
            self._hurry.clear()
            pause = self.every * (1 if self.viewers else SLOWER_UNSEEN)
            try:
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    def hurry(self) -> None:
        """Somebody has just come, or changed something: look at once."""
        self._hurry.set()

    async def _round(self) -> None:
        shown = [name for viewer in self.viewers for name in viewer.shown][:MOST_SHOWN]
        view = self.viewers[0].view if self.viewers else View()
        rest = self.roster.due(view, now=time.monotonic())
        first = dict.fromkeys([*self.elections, *shown])
        known, within = self.roster.known, self.every * SHARE
        try:
            found = await asyncio.to_thread(self._look, first, rest, known, within)
        except EngineError as error:
            self._note_problem(str(error))
        except Exception as error:  # noqa: BLE001 -- the rounds must go on, and people must see that this one did not
            _log.exception("a look at the engine failed")
            self.problem = f"a look at the engine failed with {type(error).__name__}; the log of the server says more"
        else:
            self.problem = None
            self.roster.note(found)
        async with self._news:
            self.rounds += 1
            self._news.notify_all()

    def _note_problem(self, problem: str) -> None:
        """Tell the log as well, where it begins: not in each round."""
        if self.problem is None:
            _log.warning("%s", problem)
        self.problem = problem

    def _look(self, first: Iterable[str], rest: Iterable[str], known: Container[str], within: float) -> Findings:
        """Look at the engine, in a thread: at the names, and at what others wrote down there."""
        found = self._scout.look(first, rest, known=known, within=within)
        self.books.read(within=within)
        return found

    def close(self) -> None:
        """Give back what the rounds needed besides the client; after the last one."""
        self.books.close()

    async def next_round(self, seen: int) -> int:
        """Wait for the round after the one that was `seen`; returns its number."""
        async with self._news:
            await self._news.wait_for(lambda: self.rounds > seen)
            return self.rounds

    # What is shown

    def overview(self, *, can_break: bool, version: str) -> dict[str, Any]:
        """How much there is, over time, and what happened; see the schema `Overview`."""
        roster, facts = self.roster, self.locks.facts
        totals = roster.totals()._asdict()
        return {
            "engine": facts.engine,
            "address": facts.address,
            "namespace": self.namespace,
            "version": version,
            "up": self.problem is None,
            "problem": self.problem,
            "complete": roster.complete,
            "more": roster.more,
            "at": round(time.time(), 3),
            "round_seconds": round(roster.seconds, 4),
            "can_break": can_break,
            "totals": {name: _rounded(value) for name, value in totals.items()},
            "samples": [{**one._asdict(), "at": round(one.at, 1)} for one in roster.samples],
            "events": [
                {"at": round(e.at, 1), "kind": e.kind, "name": e.name, "token": str(e.token), "holder": e.about}
                for e in reversed(roster.events)
            ],
            "elections": [self._election(name) for name in self.elections],
            "partitions": list(self._partitions()),
            **self.books.overview(),
        }

    def names(self, view: View, start: int, limit: int) -> dict[str, Any]:
        """A page of names; see the schema `Names`."""
        now = time.monotonic()
        page = view.page(self.roster, start=start, limit=limit)
        return {"names": [_row(row, now) for row in page.rows], "matching": page.matching, "start": start}

    def _election(self, name: str) -> dict[str, Any]:
        row = self.roster.rows.get(name)
        status = row.at(time.monotonic()) if row is not None else NameStatus(name, 0, (), ())
        leader = status.holders[0] if status.holders else None
        return {
            "name": name,
            "leader": leader.about if leader else None,
            "term": str(leader.token) if leader else None,
            "expires_in": _rounded(leader.expires_in) if leader else None,
            "candidates": [waiter.about for waiter in status.waiters],
        }

    def _partitions(self) -> Iterator[dict[str, Any]]:
        """Groups of partitions are told by their members, who hold GROUP/members together."""
        rows = self.roster.rows
        groups = [
            name.removesuffix(_MEMBERS)
            for name, row in rows.items()
            if name.endswith(_MEMBERS) and row.status.holders and row.status.holders[0].mode == "shared"
        ][:MOST_GROUPS]
        if not groups:
            return
        owned: dict[str, dict[str, list[int]]] = {
            group: {one.about: [] for one in rows[group + _MEMBERS].status.holders} for group in groups
        }
        waited: dict[str, list[int]] = {group: [] for group in groups}
        for name, row in rows.items():
            match = _PARTITION.fullmatch(name)
            if match is None or match[1] not in owned:
                continue
            for one in row.status.holders:
                owned[match[1]].setdefault(one.about, []).append(int(match[2]))
            if row.status.waiters:
                waited[match[1]].append(int(match[2]))
        for group in sorted(groups):
            members = [{"member": who, "partitions": sorted(some)} for who, some in sorted(owned[group].items())]
            yield {"group": group, "members": members, "waited_for": sorted(waited[group])}


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if isinstance(value, float) else value


def _row(row: Row, now: float) -> dict[str, Any]:
    status = row.at(now)
    first = min(status.holders, key=lambda one: one.expires_in, default=None)
    return {
        "name": status.name,
        "state": row.state,
        "token": str(status.token),
        "holder": first.about if first else "",
        "mode": first.mode if first else None,
        "holders": len(status.holders),
        "held_for": round(first.held_for, 1) if first else 0,
        "expires_in": round(first.expires_in, 1) if first else None,
        "waiters": len(status.waiters),
        "longest_wait": round(max((one.waited_for for one in status.waiters), default=0.0), 1),
        "closed_for": round(status.closed_for, 1),
    }
