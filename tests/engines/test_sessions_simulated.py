"""The simulator's model of locks that live in connections, statement by statement beside real servers.

The same statements of the engines go to three connections of both; every answer must be the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from random import Random
from typing import Any

import pytest
from tests.engines import mysql_help, postgres_help
from tests.engines.driving import eventually
from tests.engines.sql_help import fresh_namespace
from tests.support.mariadb_server import MariadbServer
from tests.support.postgres_server import PostgresServer

from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql_session import MysqlSessionFamily
from leasehold.engines.postgres_session import PostgresSessionFamily
from leasehold.errors import EngineUnavailable
from leasehold.sim.session_model import Key, MysqlSessions, PostgresSessions, Sessions, TimeIsUp, Waits
from leasehold.wires import mysql_target, postgres_target
from leasehold.wires.sockets import BlockingSockets
from leasehold.wires.sql_table import Request, Row, Value

STEPS = 150
CONNECTIONS = range(3)
NAMES = ("a", "b")
MYSQL_STATEMENTS = ("lock", "lock", "take", "take", "stand", "heartbeat", "unlock", "unlock", "unlock", "who", "")


class ModelConnection:
    """The model's side of one connection, which nobody times."""

    def __init__(self, number: int, server: Sessions) -> None:
        self.pid, self.locks, self._server = number + 1, Counter[Key](), server
        self.silence = self.patience = 0.0
        self.in_vain = False

    def end(self, how: str) -> None:
        self._server.unlock_all(self, how)


class Twins(ABC):
    """Three connections to a server, and the model's three."""

    @abstractmethod
    def pid(self, number: int) -> int:
        """Who serves a connection."""

    @abstractmethod
    def is_served(self, pid: int) -> bool:
        """Whether the server still does."""

    @abstractmethod
    def compare(self, rng: Random, number: int) -> None:
        """Ask both for the same, and compare what they answer."""

    def request(self, what: str, *values: Value) -> Request:
        return Request(self.family.statements[what], values)

    def __init__(self, family: Any, model: Sessions) -> None:
        self.family, self.model, self.sockets = family, model, BlockingSockets()
        self.real = [self.open() for _ in CONNECTIONS]
        self.modelled = [ModelConnection(number, model) for number in CONNECTIONS]
        self.pids = [self.pid(number) for number in CONNECTIONS]

    @property
    def soon(self) -> float:
        return self.sockets.world.now() + 10.0

    def open(self) -> Any:
        return run_blocking(self.family._connect(self.sockets, self.soon))

    def ask(
        self, number: int, *requests: Request, of_model: Request | None = None
    ) -> tuple[list[Row] | str, list[Row] | str]:
        """What both answer to the last of the requests; the model may know its own by other numbers."""
        real: list[Row] | str
        modelled: list[Row] | str = []
        try:
            real = run_blocking(self.real[number].ask_all(requests, self.soon, commits=True))[-1]
        except EngineUnavailable:
            real = "refused"
        for request in requests if of_model is None else [of_model]:
            try:
                modelled = self.model.carry_out(self.modelled[number], request)
            except (Waits, TimeIsUp):
                modelled = "refused"
        return real, modelled

    def reopen(self, number: int) -> None:
        """Close a connection, wait for the server to see that, and open another in its place."""
        pid = self.pids[number]
        self.real[number].close()
        self.modelled[number].end("released")
        eventually(lambda: not self.is_served(pid))
        self.real[number], self.modelled[number] = self.open(), ModelConnection(number, self.model)
        self.pids[number] = self.pid(number)

    def close(self) -> None:
        for line in self.real:
            line.close()


class PostgresTwins(Twins):
    def __init__(self, family: PostgresSessionFamily, model: Sessions, server: PostgresServer) -> None:
        super().__init__(family, model)
        self._server = server

    def pid(self, number: int) -> int:
        return int(self.real[number].claimed_pid)

    def is_served(self, pid: int) -> bool:
        return bool(self._server.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid))

    def compare(self, rng: Random, number: int) -> None:
        name, what = rng.choice(NAMES), rng.choice(("try", "try", "try", "lock", "heartbeat", "unlock", "unlock", ""))
        key = self.family.key_of(self.family.namespace, name)
        locking = (key, self.family.namespace, name, 60_000_000, f"holder {number}", "60000")
        if not what:
            self.reopen(number)
            return
        requests = [self.request(what, *{"heartbeat": ("60000",), "unlock": (key,)}.get(what, locking))]
        if what == "lock":
            requests.insert(0, self.request("patience", "20", "holder", "60000"))
        real, modelled = self.ask(number, *requests)
        if real == modelled == "refused":
            self.reopen(number)
            return
        assert not isinstance(real, str)
        assert not isinstance(modelled, str)
        pid_at = {"heartbeat": 0, "unlock": 1}.get(what, 2)
        assert real[0][pid_at] == self.real[number].claimed_pid
        # The last column is the text of a setting, which the server writes in its own way.
        seen, expected = ([row[0][at] for at in range(len(row[0]) - 1) if at != pid_at] for row in (real, modelled))
        assert seen == expected, what


class MysqlTwins(Twins):
    def __init__(
        self, family: MysqlSessionFamily, model: Sessions, clock: mysql_help.MovableClock, *, is_short: bool
    ) -> None:
        super().__init__(family, model)
        self._clock, self._is_short = clock, is_short

    def pid(self, number: int) -> int:
        [[pid]] = run_blocking(self.real[number].ask(self.request("self"), self.soon))
        return int(pid)

    def is_served(self, pid: int) -> bool:
        return bool(self._clock.sql(f"SELECT 1 FROM information_schema.processlist WHERE id = {pid}"))

    def compare(self, rng: Random, number: int) -> None:
        name, what = rng.choice(NAMES), rng.choice(MYSQL_STATEMENTS)
        space, key = self.family.namespace, self.family.key_of(self.family.namespace, name)
        if not what:
            self.reopen(number)
            return
        if what in {"take", "stand", "unlock"}:
            self.compare_short(rng, number, name, what)
            return
        values: dict[str, tuple[Value, ...]] = {
            "lock": (key, rng.choice((0, 20)), space, name, 60_000_000, 60, f"holder {number}"),
            "heartbeat": (key, 60),
            "who": (key,),
        }
        self.modelled[number].in_vain = True
        real, modelled = self.ask(number, self.request(what, *values[what]))
        numbers = {pid: number for number, pid in enumerate(self.pids)}
        assert not isinstance(real, str)
        pid_at = {"heartbeat": 0, "who": 0}.get(what, 2)
        seen = list(real[0])
        if seen[pid_at]:
            seen[pid_at] = numbers[int(seen[pid_at])] + 1
        if what == "lock" and not seen[0]:
            seen[1] = 0  # the last number that was minted on this connection, which says nothing
        assert [tuple(seen)] == modelled, what

    def compare_short(self, rng: Random, number: int, name: str, what: str) -> None:
        """The ways of those who know the number of their connection, or the number that it had before."""
        space, key = self.family.namespace, self.family.key_of(self.family.namespace, name)
        before, patience = int(rng.random() < 0.2), rng.choice((0, 20))
        asked = []
        for pid in (self.pids[number] - before, number + 1 - before):
            if what == "take":
                values: tuple[Value, ...] = (space, name, key, 60_000_000, f"holder {number}", pid)
            elif what == "unlock":
                values = (key, pid)
            else:
                values = (key, patience, space, name, 60_000_000, pid, f"holder {number}")
            asked.append(self.request(what, *values))
        if what == "take" and not self._is_short:
            [[changed, _]] = run_blocking(self.real[number].ask(asked[0], self.soon))
            assert not changed
            return
        self.modelled[number].in_vain = True
        real, modelled = self.ask(number, asked[0], of_model=asked[1])
        self.modelled[number].in_vain = False
        assert not isinstance(real, str)
        [[changed, token]] = real
        assert [(changed, token if changed and what != "unlock" else 0)] == modelled, what


def play(twins: Twins, clock: postgres_help.MovableClock | mysql_help.MovableClock, rng: Random) -> None:
    try:
        for _ in range(STEPS):
            if rng.random() < 0.2:
                clock.move(rng.choice((-5, 1, 1000)))
            twins.compare(rng, rng.choice(CONNECTIONS))
    finally:
        twins.close()
        clock.close()


@pytest.mark.parametrize("seed", range(2))
def test_advisory_locks(seed: int, postgres_server: PostgresServer) -> None:
    clock = postgres_help.MovableClock(postgres_server)
    target = postgres_target.target_from_url(postgres_server.url.replace("postgresql", "postgresql+session", 1))
    namespace = fresh_namespace()
    family = PostgresSessionFamily(target, namespace, "test", clock=postgres_help.MOVABLE_CLOCK)
    twins, rng = PostgresTwins(family, PostgresSessions(lambda: clock.micros), postgres_server), Random(seed)
    play(twins, clock, rng)


@pytest.mark.parametrize("seed", range(2))
def test_named_locks(seed: int, mariadb_server: MariadbServer) -> None:
    clock = mysql_help.MovableClock(mariadb_server)
    target = mysql_target.target_from_url(mariadb_server.url.replace("://", "+session://", 1))
    family = MysqlSessionFamily(target, fresh_namespace(), "test", clock=mysql_help.MOVABLE_CLOCK)
    model, is_short = MysqlSessions(lambda: clock.micros), mariadb_server.engine == "mariadb"
    twins, rng = MysqlTwins(family, model, clock, is_short=is_short), Random(seed)
    clock.sql("UPDATE leasehold_meta SET base = 0")  # other tests have swept here: tokens would begin above theirs
    play(twins, clock, rng)
