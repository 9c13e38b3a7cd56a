"""Connections to a simulated SQL server: they deliver requests and answers in order, or break.

A statement travels as it is, known by its name; the bytes of the server's protocol are not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from leasehold.core.engine import Grant
from leasehold.sim.bells import SimBell
from leasehold.sim.network import Channel, Link, Network
from leasehold.sim.scheduler import PARK
from leasehold.sim.world import SimWorld
from leasehold.wires.postgres_errors import cut_off, unanswered, unreachable
from leasehold.wires.sql_listen import Ear, Listener, Waiter
from leasehold.wires.sql_table import Raced, Request, Row

GONE: Final = object()
"""The server has ended the connection."""
REFUSED: Final = object()
"""A row was locked for too long, or a lock was not had in time."""
NOTHING: Final = object()


class Backend(Protocol):
    """The server's side of one connection."""

    is_over: bool

    def ask(self, requests: Sequence[Request]) -> None:
        """Carry out statements one after the other."""
        ...

    def hang_up(self) -> None:
        """The client has closed it."""
        ...


class SqlServer(Protocol):
    """Who takes connections at the other end."""

    network: Network
    down: bool

    def accept(self, link: Link, answer: Callable[[object], object]) -> Any:
        """Serve a new connection."""
        ...

    def receive(self, link: Link, epoch: int, call: Callable[..., object], *arguments: object) -> None:
        """Something has come over a connection."""
        ...


class SimLine:
    """The client's side of one connection: implements the lines of `sql_lease`, `sql_listen` and `sql_pins`."""

    closes_on_error = True
    """Whether the connection is not used any more after the server has refused something."""

    def __init__(self, world: SimWorld, site: SqlServer, link: Link, address: str) -> None:
        self._world, self._site, self.link, self._epoch = world, site, link, link.epoch
        self._address = address
        self._there = Channel(site.network, link, self._arrives, to_process=False)
        self._back = Channel(site.network, link, self._comes_back, to_process=True)
        self.backend: Backend = site.accept(link, self._back.send)
        self._bell: SimBell | None = None
        self._answer: object = NOTHING
        self._heard: list[tuple[str, str]] = []
        self.news: Callable[[], object] = lambda: None
        """Called when there is something to read that nobody asked for, or the connection broke."""
        self.closed: Callable[[], object] = lambda: None
        self.is_open, self.socket = True, 1
        self.sockets: Any = None
        self.is_set_for: Any = None
        link.sockets.append(self)

    # The server

    def _arrives(self, requests: object) -> None:
        self._site.receive(self.link, self._epoch, self._serve, requests)

    def _serve(self, requests: object) -> None:
        if requests is None:
            self.backend.hang_up()
        elif self.backend.is_over:
            self._serve_anew(cast(Sequence[Request], requests))
        else:
            self.backend.ask(cast(Sequence[Request], requests))

    def _serve_anew(self, requests: Sequence[Request]) -> None:  # noqa: ARG002 -- others may know somebody who does
        """Nobody serves this connection any more, and who sends something into it hears that."""
        self._back.send(GONE)

    # The client

    def _comes_back(self, answer: object) -> None:
        if isinstance(answer, tuple):
            self._heard.append(answer)
            self.news()
            return
        if answer is GONE:
            self.broke()
            return
        self._answer = answer
        if self._bell is not None:
            self._bell.ring()

    def broke(self) -> None:
        """The connection broke, and its client can see that."""
        was_open, self.is_open = self.is_open, False
        if self._bell is not None:
            self._bell.ring()
        if was_open:
            self.news()
            self.closed()

    def _sends(self, requests: Sequence[Request]) -> None:
        self._bell, self._answer = SimBell(self._world), NOTHING
        self._there.send(list(requests))

    async def _answered(self, until: float) -> bool:
        assert self._bell is not None
        while self._answer is NOTHING and self.is_open:
            if not await self._bell.wait(until):
                break
        return self._answer is not NOTHING

    async def ask_all(self, requests: Sequence[Request], until: float, *, commits: bool) -> list[list[Row]]:
        """Send statements together and return the rows of each."""
        if not self.is_open:
            raise unreachable(self._address, "the connection broke")
        if self._world.now() >= until:
            raise unreachable(self._address, "there was no time left to ask")
        self._sends(requests)
        try:
            answered = await self._answered(until)
        except BaseException:
            self.close()
            raise
        if not answered:
            failed = unanswered if self.is_usable() else cut_off
            self.close()
            raise failed(self._address, commits=commits)
        return self._understood()

    def _understood(self) -> list[list[Row]]:
        if self._answer in (Raced, REFUSED) and self.closes_on_error:
            self.close()
        if self._answer is Raced:
            raise Raced
        if self._answer is REFUSED:
            raise unreachable(self._address, "something was locked for too long")
        return cast(list[list[Row]], self._answer)

    async def ask(self, request: Request, until: float, *, commits: bool = True) -> list[Row]:
        """Send one statement, a transaction of its own."""
        return (await self.ask_all([request], until, commits=commits))[0]

    def post(self, request: Request) -> None:
        """Send a request whose answer is fetched later; raises `ConnectionError` when the connection broke."""
        if not self.is_open:
            raise ConnectionError
        self._sends([request])

    async def answer(self, until: float) -> list[Row] | None:
        """The answer to what was posted; None when it has not come by `until`, and then it may still come."""
        try:
            answered = await self._answered(until)
        except BaseException:
            self.close()
            raise
        if not answered:
            if self.is_open:
                return None
            raise ConnectionError
        return self._understood()[-1]

    def notifications(self) -> list[tuple[str, str]]:
        """Channels and payloads that have come."""
        if not self.is_open and not self._heard:
            raise ConnectionError
        heard, self._heard = self._heard, []
        return heard

    def doze(self) -> None:
        """Nobody looks for answers here: they are heard of."""

    def is_usable(self) -> bool:
        """Whether it can carry a request, as far as the client knows."""
        return self.is_open

    def close(self) -> None:
        """Close it; the server hears of that when it gets there."""
        if self.is_open:
            self.is_open = False
            self._there.send(None)
            self.closed()
        if self in self.link.sockets:
            self.link.sockets.remove(self)

    def let_go(self) -> None:
        """Nobody forks here."""


async def connected(world: SimWorld, site: SqlServer, link: Link, address: str, until: float) -> None:
    """Let the time go by that a connection takes to open, or raise what it meets."""
    scheduler, give_up_at = world.scheduler, world.true_time(until)
    if not link.cut:
        at = min(scheduler.now + 2 * site.network.delay(), give_up_at)
        scheduler.resume_at(at, scheduler.current, True)
    scheduler.resume_at(give_up_at, scheduler.current)
    if await PARK is None or link.cut:
        raise unreachable(address, "no answer in time")
    if site.down:
        raise unreachable(address, "connection refused")


class SimListener(Listener):
    """Tasks sleep until the simulated connection has heard of them."""

    def _opened(self, ear: Ear) -> None:
        if ear.line is not None:
            cast(SimLine, ear.line).news = lambda: self._read(ear)

    async def _wait(self, holder: str, waiter: Waiter, until: float) -> Grant | None:
        while not waiter.woken and await waiter.bell.wait(until):
            continue
        return self._handed(holder, waiter)
