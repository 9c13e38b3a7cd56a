"""The Consul engine beside a model of it, step by step, on a real server: every answer, and what is stored, must agree.

The model is the queue as `docs/engines/consul.md` tells it: one list of attempts in the order of their arrival. Two
clients ask in turn, each with a few attempts; sessions are ended under them, and an operator breaks the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.engines.consul_help import Driven, family_at
from tests.engines.driving import fresh_name
from tests.support.consul_server import ConsulNode, running_consul

from leasehold.core.engine import Busy, Grant, Mode, NameStatus, Renewal, Want

CLIENTS = st.integers(0, 1)
ATTEMPTS = st.integers(0, 2)
MODES: st.SearchStrategy[Mode] = st.sampled_from(["exclusive", "exclusive", "shared", "shared", "permit"])
TTLS = st.sampled_from([30.0, 30.0, 60.0])
LONG_DELAY = 50.0
"""Of a lock-delay that does not end during a test."""


@dataclass
class Stood:
    """An attempt in the queue."""

    want: Want
    client: int
    token: int
    closes: bool = False
    """What remains of a lost lease with a lock-delay."""
    closed_after: int = 0
    """The highest token when it was lost: who has a higher one came later."""


@dataclass
class Model:
    """One name."""

    queue: list[Stood] = field(default_factory=list)
    highest: int = 0

    def find(self, want: Want) -> Stood | None:
        return next((one for one in self.queue if one.want.holder == want.holder and not one.closes), None)

    def holds(self, stood: Stood) -> bool:
        """Whether nobody before it is in its way."""
        return self.is_shown_to_hold(stood) and not any(one.closes for one in self.queue[: self.queue.index(stood)])

    def is_shown_to_hold(self, stood: Stood) -> bool:
        """Who was let in before another's lease was lost goes on to hold the name beside what remains of that."""
        before = self.queue[: self.queue.index(stood)]
        if any(one.closes and one.closed_after < stood.token for one in before):
            return False
        if any("exclusive" in (one.want.mode, stood.want.mode) for one in before):
            return False
        if any(one.want.mode != stood.want.mode for one in before):
            return False
        return stood.want.mode == "shared" or len(before) < stood.want.limit

    def standing(self, *, holding: bool) -> list[Stood]:
        return [one for one in self.queue if not one.closes and self.is_shown_to_hold(one) is holding]

    def lose(self, stood: Stood) -> None:
        """It leaves its key, which closes the name to who comes from now on."""
        stood.closes, stood.closed_after = True, self.highest


class EngineAndModel(RuleBasedStateMachine):
    """Drives both with the same requests."""

    def __init__(self, server: ConsulNode) -> None:
        super().__init__()
        self.server = server
        self.engines = [Driven(family_at(server.url)) for _ in range(2)]

    @initialize()
    def begin(self) -> None:
        self.name, self.model = fresh_name(), Model()
        self.wants: dict[tuple[int, int], Want] = {}
        self.granted: set[str] = set()

    def teardown(self) -> None:
        for engine in self.engines:
            engine.close()
        self.server.destroy_sessions()
        self.server.ask("DELETE", "kv/leasehold/?recurse")

    def minted(self, token: int) -> int:
        assert token > self.model.highest, "tokens increase in the order of arrival"
        self.model.highest = token
        return token

    @rule(
        client=CLIENTS,
        attempt=ATTEMPTS,
        mode=MODES,
        limit=st.integers(1, 3),
        ttl=TTLS,
        delay=st.sampled_from([0.0, 0.0, 0.0, 0.0, LONG_DELAY]),
        patient=st.booleans(),
    )
    def take(
        self, client: int, attempt: int, mode: Mode, limit: int, ttl: float, delay: float, *, patient: bool
    ) -> None:
        """A new attempt, or one that is made already and asks again."""
        fresh = Want(
            self.name, f"{fresh_name()}-{client}-{attempt}", ttl, mode, limit, delay, f"{client}-{attempt}@x:1"
        )
        want = self.wants.setdefault((client, attempt), fresh)
        stood, oldest = self.model.find(want), self.model.queue[0] if self.model.queue else None
        answer = self.engines[client].take(want, patience=60.0 if patient else None)
        if stood is None:
            stood = Stood(want, client, 0)
            self.model.queue.append(stood)
        if self.model.holds(stood):
            assert isinstance(answer, Grant)
            assert answer.since is not None
            stood.token = stood.token or self.minted(answer.token)
            assert answer.token == stood.token
            self.granted.add(want.holder)
            return
        assert isinstance(answer, Busy)
        self.granted.discard(want.holder)
        assert answer.incumbent is not None
        assert oldest is not None
        assert (answer.incumbent.token, answer.incumbent.about) == (oldest.token, oldest.want.about)
        if patient:
            place = self.engines[client].place(want)
            stood.token = stood.token or self.minted(place.token or 0)
        else:
            self.leave(client, attempt, stood)

    def leave(self, client: int, attempt: int, stood: Stood) -> None:
        self.model.queue.remove(stood)
        self.granted.discard(stood.want.holder)
        del self.wants[client, attempt]

    @rule(client=CLIENTS, attempt=ATTEMPTS)
    def release(self, client: int, attempt: int) -> None:
        want = self.wants.get((client, attempt))
        if want is None:
            return
        stood = self.model.find(want)
        was_held = self.engines[client].release(self.name, want.holder)
        if stood is None:
            assert not was_held
            del self.wants[client, attempt]
            return
        assert was_held == (want.holder in self.granted)
        self.leave(client, attempt, stood)

    @rule(client=CLIENTS, ttl=TTLS)
    def renew(self, client: int, ttl: float) -> None:
        """All leases that this client believes in; with a longer TTL they move to another session."""
        held = [want for (number, _), want in self.wants.items() if number == client and want.holder in self.granted]
        stood = [self.model.find(want) for want in held]
        tokens = [one.token if one is not None else 1 for one in stood]
        asked = [Renewal(self.name, want.holder, token, ttl) for want, token in zip(held, tokens, strict=True)]
        assert self.engines[client].renew(asked) == [one is not None for one in stood]

    @rule(client=CLIENTS, attempt=ATTEMPTS)
    def the_server_ends_a_session(self, client: int, attempt: int) -> None:
        """All that hangs on it is gone; but a lease with a lock-delay leaves its key."""
        want = self.wants.get((client, attempt))
        if want is None or self.model.find(want) is None:
            return
        session = self.engines[client].place(want).session
        gone = [
            one
            for one in self.model.queue
            if not one.closes and one.client == client and self.engines[client].place(one.want).session is session
        ]
        self.server.ask("PUT", f"session/destroy/{session.id}")
        for one in gone:
            if session.terms.delay:
                self.model.lose(one)
        self.model.queue = [one for one in self.model.queue if one not in gone or one.closes]

    @rule()
    def an_operator_breaks_it(self) -> None:
        token = self.engines[0].force_release(self.name)
        self.minted(token)
        for one in self.model.queue:
            if not one.closes and one.want.delay and one.want.holder in self.granted:
                self.model.lose(one)
        self.model.queue = [one for one in self.model.queue if one.closes]

    @invariant()
    def what_is_shown_agrees(self) -> None:
        status: NameStatus | None = self.engines[1].status(self.name)
        names: list[str] = self.engines[0].names(after=None, limit=10)
        assert (status is None) == (not self.model.queue) == (not names)
        if status is None:
            return
        assert names == [self.name]
        holding, waiting = self.model.standing(holding=True), self.model.standing(holding=False)
        assert [(one.token, one.mode) for one in status.holders] == [(one.token, one.want.mode) for one in holding]
        assert [(one.mode, one.about) for one in status.waiters] == [(one.want.mode, one.want.about) for one in waiting]
        assert (status.closed_for > 0) == any(one.closes for one in self.model.queue)


@pytest.fixture(scope="module")
def server() -> Iterator[ConsulNode]:
    with running_consul() as node:
        yield node


def test_the_engine_does_what_the_model_does(server: ConsulNode) -> None:
    machine: Any = lambda: EngineAndModel(server)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
