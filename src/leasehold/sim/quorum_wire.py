"""The redlock engine's path to simulated servers: it puts requests into a soup, and waits for what comes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn, Protocol

from leasehold.core.quorum import Outcome, Request
from leasehold.errors import NotSupported


class Pause:
    """What a client waits for: the answers to a request, or time."""

    def __init__(self) -> None:
        self.done = False

    def __await__(self) -> Generator[Pause, None, None]:
        while not self.done:
            yield self


class Scatter(Pause):
    """A request to several servers, and what its client knows so far."""

    def __init__(self, servers: int, enough: Callable[[list[Any]], bool]) -> None:
        super().__init__()
        self.outcomes: list[Any] = [None] * servers
        self.enough = enough

    def arrive(self, server: int, outcome: Outcome) -> None:
        """A reply came; one that comes after the decision is ignored."""
        if not self.done:
            self.outcomes[server] = outcome
            self.done = self.enough(self.outcomes)


class Soup(Protocol):
    """What a wire needs to know of its history."""

    clock: int
    random: random.Random
    clocks_help: bool

    @property
    def servers(self) -> int:
        """How many there are."""
        ...

    def send(self, request: Request, to: Sequence[int], scatter: Scatter) -> None:
        """Put a request to each of these servers into the soup."""
        ...

    async def pause(self) -> None:
        """Let others go first."""
        ...


class QuorumWorld:
    """Virtual time for the engine."""

    def __init__(self, history: Soup) -> None:
        self._history = history

    def now(self) -> float:
        """Seconds."""
        return self._history.clock / 1e6

    async def sleep(self, seconds: float) -> None:  # noqa: ARG002 -- it lasts as long as the history likes
        """Wait until the history lets it go on."""
        await self._history.pause()

    def chance(self) -> float:
        """From the seed."""
        return self._history.random.random()

    def nonce(self) -> str:
        """A holder that nobody else has."""
        return f"{self._history.random.getrandbits(64):016x}"

    def process(self) -> int:
        """Nobody forks here."""
        return 1


class QuorumWire:
    """One client's path to the servers."""

    def __init__(self, history: Soup) -> None:
        self.world = QuorumWorld(history)
        self._history = history
        self._wall_error = history.random.choice([-(10**7), 0, 0, 10**7])

    def wall(self) -> int:
        """Wrong, on some; and in most histories of no use, so that counters stay small and collide."""
        return max(self._history.clock + self._wall_error, 0) if self._history.clocks_help else 0

    async def scatter(
        self,
        request: Request,
        to: Sequence[int],
        until: float,  # noqa: ARG002 -- the history decides when time is up
        enough: Callable[[list[Any]], bool],
    ) -> list[Outcome]:
        """Put the request into the soup, and wait."""
        scatter = Scatter(self._history.servers, enough)
        self._history.send(request, to, scatter)
        await scatter
        return scatter.outcomes

    async def scatter_all(
        self, requests: Sequence[Request], until: float, enough: Callable[[list[Any]], bool]
    ) -> list[Any]:
        """One lease is renewed at a time here."""
        (request,) = requests

        def enough_of_lists(outcomes: list[Any]) -> bool:
            return enough([None if one is None else [one] for one in outcomes])

        outcomes = await self.scatter(request, range(self._history.servers), until, enough_of_lists)
        return [None if one is None else [one] for one in outcomes]

    async def collect(self, *_asked: object, **_how: object) -> NoReturn:
        """Nobody looks at the servers from outside here."""
        raise NotSupported("nobody in the simulation asks for this; the judges see everything anyway")

    def cast(self, request: Request, to: Sequence[int]) -> None:
        """Put the request into the soup."""
        self._history.send(request, to, Scatter(self._history.servers, lambda _outcomes: True))

    def settled(self, holder: str) -> None:
        """Nobody waits to be woken here."""

    async def wait(self, holder: str, until: float) -> None:
        """Nobody waits to be woken here."""

    async def close(self) -> None:
        """Nothing to close."""

    def forked(self) -> None:
        """Nobody forks here."""
