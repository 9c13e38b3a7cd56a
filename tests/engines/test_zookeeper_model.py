"""ZooKeeper against a model of the queue, step by step: every answer, token and status must be the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from tests.engines.driving import want
from tests.engines.zookeeper_help import Driven, family_at
from tests.support.zookeeper_server import ZooKeeperServer, running_zookeeper

from leasehold.core.engine import Busy, Grant, Mode, Renewal, Want

NAMES = ("a", "b/c")
_spaces = itertools.count(1)


@dataclass(eq=False)
class Attempt:
    """One attempt, as the model knows it."""

    want: Want
    client: int
    token: int = 0
    granted: bool = False


class Queue:
    """A name: who is in line for it, in the order of arrival. Whoever nobody before it excludes may hold it."""

    def __init__(self) -> None:
        self.line: list[Attempt] = []

    def free_for(self, attempt: Attempt) -> bool:
        before = self.line[: self.line.index(attempt)] if attempt in self.line else self.line
        mode = attempt.want.mode
        if mode == "exclusive":
            return not before
        if any(one.want.mode != mode for one in before):
            return False
        return mode == "shared" or len(before) < attempt.want.limit


class EngineAndModel(RuleBasedStateMachine):
    url: ClassVar[str]
    attempts: Bundle[Attempt] = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.queues = {name: Queue() for name in NAMES}
        self.highest = 0

    @initialize()
    def connect(self) -> None:
        space = f"space-{next(_spaces)}"
        self.clients = [Driven(family_at(self.url, namespace=space)) for _ in range(2)]

    def teardown(self) -> None:
        for client in self.clients:
            client.close()

    def check_taken(self, attempt: Attempt, patience: float | None) -> None:
        """Take, or take again, and compare."""
        queue = self.queues[attempt.want.name]
        free, known = queue.free_for(attempt), attempt in queue.line
        incumbent = queue.line[0] if queue.line else None
        answer = self.clients[attempt.client].take(attempt.want, patience=patience)
        if free:
            assert isinstance(answer, Grant)
            assert answer.token == attempt.token or not attempt.granted
            attempt.granted = True
        else:
            assert isinstance(answer, Busy)
            assert incumbent is not None
            # Who has the time may find out with its next question.
            assert answer.incumbent is not None or (patience is not None and not known)
            assert answer.incumbent is None or answer.incumbent.about == incumbent.want.about
        if not known and (free or patience is not None):
            queue.line.append(attempt)
            attempt.token = self.clients[attempt.client].place(attempt.want).token
            assert attempt.token > self.highest, "tokens are in the order of arrival, over all names"
            self.highest = attempt.token
        if isinstance(answer, Grant):
            assert answer.token == attempt.token

    @rule(
        target=attempts,
        name=st.sampled_from(NAMES),
        client=st.integers(0, 1),
        mode=st.sampled_from(("exclusive", "shared", "permit")),
        limit=st.integers(1, 3),
        ttl=st.sampled_from((60.0, 60.0, 30.0)),
        waits=st.booleans(),
    )
    def come(self, name: str, client: int, mode: Mode, limit: int, ttl: float, waits: bool) -> Attempt:
        attempt = Attempt(want(name, ttl=ttl, mode=mode, limit=limit if mode == "permit" else 1), client)
        self.check_taken(attempt, 60.0 if waits else None)
        return attempt if attempt in self.queues[name].line else multiple()  # type: ignore[return-value]

    @rule(attempt=attempts)
    def ask_again(self, attempt: Attempt) -> None:
        if attempt in self.queues[attempt.want.name].line:
            self.check_taken(attempt, 60.0)

    @rule(attempt=attempts)
    def wake_and_ask_again(self, attempt: Attempt) -> None:
        """Who is woken asks again by a shorter way than who just asks again."""
        queue = self.queues[attempt.want.name]
        if attempt in queue.line and not attempt.granted:
            free = queue.free_for(attempt)
            took = self.clients[attempt.client].wait(attempt.want, 5.0 if free else 0.02)
            assert took < 2, "whose turn has come is told"
            self.check_taken(attempt, 60.0)

    @rule(attempt=attempts, longer=st.booleans())
    def renew(self, attempt: Attempt, longer: bool) -> None:
        held = attempt.granted and attempt in self.queues[attempt.want.name].line
        if attempt.granted:
            lease = Renewal(attempt.want.name, attempt.want.holder, attempt.token, 70.0 if longer else attempt.want.ttl)
            assert self.clients[attempt.client].renew([lease]) == [held]

    @rule(attempt=attempts)
    def release(self, attempt: Attempt) -> None:
        line = self.queues[attempt.want.name].line
        held = attempt.granted and attempt in line
        assert self.clients[attempt.client].release(attempt.want.name, attempt.want.holder) == held
        if attempt in line:
            line.remove(attempt)

    @rule(name=st.sampled_from(NAMES), client=st.integers(0, 1))
    def force_release(self, name: str, client: int) -> None:
        token = self.clients[client].force_release(name)
        assert token > self.highest
        self.highest = token
        for attempt in self.queues[name].line:
            # Those who waited come again by themselves; here they are gone for good.
            self.clients[attempt.client].release(name, attempt.want.holder)
        self.queues[name].line.clear()

    @invariant()
    def status_is_the_same(self) -> None:
        if not hasattr(self, "clients"):
            return
        for name, queue in self.queues.items():
            status = self.clients[0].status(name)
            holders = [one for one in queue.line if queue.free_for(one)]
            waiters = [one for one in queue.line if not queue.free_for(one)]
            assert (status is None) == (not queue.line)
            if status is not None:
                seen = [(one.token, one.mode, one.about) for one in status.holders]
                assert seen == [(one.token, one.want.mode, one.want.about) for one in holders]
                assert [one.about for one in status.waiters] == [one.want.about for one in waiters]
        held = sorted(name for name, queue in self.queues.items() if queue.line)
        assert self.clients[1].names(after=None, limit=10) == held


@pytest.fixture(autouse=True, scope="module")
def _server() -> Iterator[ZooKeeperServer]:
    with running_zookeeper() as server:
        EngineAndModel.url = server.url
        yield server


TestEngineAndModel = EngineAndModel.TestCase
TestEngineAndModel.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
