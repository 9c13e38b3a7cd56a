"""A leader resigns in favour of one of two: every interleaving of who looks and who comes; planted bugs are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.patterns.interleave import Task, Violation, explore, turn

from leasehold.errors import NotAcquired
from leasehold.patterns import ranks
from leasehold.patterns.ranks import Ranks

NAME, TTL, TRIES = "leader", 3.0, 3


class Table:
    """Leases, and the time; each step is atomic, and anybody may come in before it."""

    def __init__(self) -> None:
        self.clock, self._minted = 100.0, 0
        self.held: dict[str, tuple[int, float]] = {}

    async def take(self, name: str, ttl: float, *, renew: bool) -> Any:
        await turn()
        if self._token(name) is not None:
            raise NotAcquired(name, wait=0, holder=None, token=None)
        self._minted += 1
        self.held[name] = (self._minted, float("inf") if renew else self.clock + ttl)
        return SimpleNamespace(name=name, token=self._minted, lost=False)

    async def give_back(self, lease: Any) -> None:
        await turn()
        if self._token(lease.name) == lease.token:
            del self.held[lease.name]

    async def token_of(self, name: str) -> int | None:
        await turn()
        return self._token(name)

    async def pause(self, _seconds: float) -> None:
        await turn()
        self.clock += 1

    def _token(self, name: str) -> int | None:
        token, expires = self.held.get(name, (None, 0.0))
        return token if expires > self.clock else None

    def dump(self) -> str:
        return f"{sorted(self.held.items())}{self.clock}"

    def close(self) -> None:
        """Nothing is open."""


class Handover:
    """One leads and resigns in favour of "c"; "b" and "c" want to lead."""

    def __init__(self) -> None:
        self.database: Any = Table()
        self.led: list[tuple[str, float]] = []
        self._resigned_at = float("inf")
        self.database.held[NAME] = (0, float("inf"))
        self.tasks = [Task(self._leader()), Task(self._candidate("b")), Task(self._candidate("c"))]

    def _ranks(self, name: str) -> Ranks:
        return Ranks(self.database, NAME, TTL, priority=None, candidate=name)

    async def _leader(self) -> None:
        mine = self._ranks("a")
        held = await mine.resign("c")
        self._resigned_at = self.database.clock
        await self.database.give_back(SimpleNamespace(name=NAME, token=0))
        await mine.see_off(held)

    async def _candidate(self, name: str) -> None:
        mine = self._ranks(name)
        for _ in range(TRIES):
            try:
                lease = await self.database.take(NAME, TTL, renew=True)
            except NotAcquired:
                continue
            if await mine.gives_way():
                await self.database.give_back(lease)
                continue
            self.led.append((name, self.database.clock))
            await self.database.give_back(lease)
            return

    def choices(self) -> list[str]:
        return []

    def happen(self, choice: str) -> None:
        raise NotImplementedError(choice)

    def check(self) -> None:
        if self.led and self.led[0][0] == "b" and self.led[0][1] < self._resigned_at + TTL:
            raise Violation("another one led before the favourite, while that could still come")

    def settle(self) -> None:
        """Whatever crashes: what was held for the favourite runs out, and the others can lead."""
        self.database.clock += TTL
        if set(self.database.held) - {NAME} and any(
            self.database._token(name) for name in self.database.held if name != NAME
        ):
            raise Violation("what is held for a favourite is held for ever")


@pytest.fixture(autouse=True)
def _clock_of_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Handover.__init__

    def begin_anew(self: Handover) -> None:
        original(self)
        monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: self.database.clock))

    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(Handover, "__init__", begin_anew)


def test_the_favourite_leads_first_in_every_interleaving() -> None:
    assert explore(Handover, most=60_000) > 500


async def _ends_when_anybody_holds_the_lease(self: Ranks, held: list[Any]) -> None:
    """So it was once: one that is about to give way holds the lease, too."""
    while await self._leases.token_of(NAME) is None and self._leases.clock < 103:  # type: ignore[attr-defined]
        await self._leases.pause(0)
    for lease in held:
        await self._leases.give_back(lease)


async def _nobody_is_favoured(_self: Ranks) -> str:
    return ""


async def _holds_it_for_ever(self: Ranks, candidate: str) -> list[Any]:
    return [await self._leases.take(name, TTL, renew=True) for name in (self._favour(candidate), self._favour())]


@pytest.mark.parametrize(
    ("method", "mutant"),
    [
        ("see_off", _ends_when_anybody_holds_the_lease),
        ("_favoured", _nobody_is_favoured),
        ("_favour_this", _holds_it_for_ever),
    ],
)
def test_a_planted_bug_is_found(method: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, method, mutant)
    with pytest.raises(Violation):
        explore(Handover, most=60_000)
