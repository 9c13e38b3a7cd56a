"""Servers that answer nonsense at any step: a typed error or a loss, never a false grant; and afterwards all is well.

Between the engine and a real server stands one that spoils a single answer by a seed. What the engine then claims is
compared with what the real server says to somebody who asks it directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from psycopg.pq import ConnStatus
from tests.support.consul_server import running_consul
from tests.support.etcd_server import running_etcd
from tests.support.liar import ByteLiar, Liar, MessageLiar, Spoiled
from tests.support.mariadb_server import running_mariadb
from tests.support.postgres_server import running_postgres
from tests.support.redis_server import RedisServer, running
from tests.support.server_process import memory_folder
from tests.support.zookeeper_server import running_zookeeper

from leasehold.core.engine import Busy, Engine, EngineFamily, Grant, Renewal, Want
from leasehold.core.worlds import run_blocking
from leasehold.errors import LeaseholdError
from leasehold.opening import open_family
from leasehold.wires.postgres_line import Line

BY_DAY, BY_NIGHT = 5, 1000
ENGINES = (
    *("postgresql", "mariadb", "etcd", "zookeeper", "consul"),
    # Redis is asked by day in another way; the rest of a session engine is what its sister is.
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("redis", "postgresql+session", "mariadb+session")),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mysql", "mysql+session")),
)
PLAYERS = ("blocking", "asyncio") * 4
"""The worlds of those who play a night at the same time."""
TTL = 60.0
PATIENT, IMPATIENT, DIRECT = 2.0, 0.25, 30.0
"""How long an engine is asked for while its server is right, while it is not, and where nothing is in between."""
LONGEST = 30.0
"""An engine that is given so little time comes back long before that, also on a busy machine."""
TRIES = 5
MOST_TRIES = 8
"""How many times as often a step is taken: not each of them meets the answer that was to be spoiled."""
BEYOND = 0.1
"""How often an answer is chosen that may not come: there can be more of them than were ever seen."""
_numbers = itertools.count(1)

Operation = Callable[[], Coroutine[Any, Any, Any]]


class Site(NamedTuple):
    """A real server, and how to address it or whoever stands before it."""

    port: int
    url_at: Callable[[int], str]
    liar: Callable[[int], Liar] = ByteLiar
    silent: str = ""
    """A step that asks the server nothing."""

    def cases(self, step: Step, cases: int) -> int:
        """How often a step is to be taken."""
        return cases if step.__name__ != self.silent else 0


@contextlib.contextmanager
def site_of(engine: str, folder: Any) -> Iterator[Site]:
    kind, _, session = engine.partition("+")
    scheme = f"{kind}+session" if session else kind
    with contextlib.ExitStack() as stack:

        def started(server: AbstractContextManager[Any]) -> Any:
            return stack.enter_context(server)

        if kind == "redis":
            server = started(running(RedisServer("redis", folder)))
            yield Site(server.port, lambda port: f"redis://127.0.0.1:{port}")
        elif kind in {"postgresql", "mariadb", "mysql"}:
            server = started(running_postgres() if kind == "postgresql" else running_mariadb(engine=kind))
            of = server.url.partition("://")[0]
            url_at = functools.partial(server.url_at, "127.0.0.1")
            # With a lease that lives in a connection, that is gone as well.
            silent = "renew_lost" if session else ""
            yield Site(server.port, lambda port: url_at(port).replace(of, scheme, 1), silent=silent)
        elif kind == "etcd":
            server = started(running_etcd(started(memory_folder())))
            yield Site(server.port, lambda port: f"etcd://127.0.0.1:{port}", MessageLiar, "check_purpose")
        else:
            server = started(running_consul() if kind == "consul" else running_zookeeper())
            yield Site(server.port, lambda port: server.url_at("127.0.0.1", port), silent="check_purpose")


def fresh() -> Want:
    number = next(_numbers)
    return Want(f"name-{number}", f"{random.getrandbits(128):032x}", TTL, about=f"worker-{number}@host:1")


class Stage:
    """An engine behind a liar, and another that asks the same server directly."""

    def __init__(self, site: Site, world: str, liar: Liar) -> None:
        self.struck: Spoiled | None = None
        self._answers: int | None = None
        """The most answers that a step was seen to bring."""
        self._changed = False
        """Whether a connection went on after nonsense: with what followed it may have made some sense."""
        self._liar, self._url, namespace = liar, site.url_at(liar.port), f"n{next(_numbers)}"
        self._namespace = namespace
        self._runner = asyncio.Runner() if world == "asyncio" else None
        self.direct = open_family(site.url_at(site.port), namespace=namespace, label="direct").blocking()
        self._rival = open_family(site.url_at(site.port), namespace=namespace, label="rival").blocking()
        self.engine = self._opened()

    def _family(self) -> EngineFamily:
        return open_family(self._url, namespace=self._namespace, label="liar")

    def _opened(self) -> Engine:
        if self._runner is None:
            return self._family().blocking()

        async def in_loop() -> Engine:
            return self._family().asyncio()

        return self._runner.run(in_loop())

    def reopen(self) -> None:
        """Begin with a new connection."""
        self.run(self.engine.close())
        self.engine, self._changed = self._opened(), False

    def run(self, operation: Coroutine[Any, Any, Any]) -> Any:
        return run_blocking(operation) if self._runner is None else self._runner.run(operation)

    def close(self) -> None:
        self.run(self.engine.close())
        for engine in (self.direct, self._rival):
            run_blocking(engine.close())
        if self._runner is not None:
            self._runner.close()

    # The truth

    def until(self, seconds: float) -> float:
        return self.engine.world.now() + seconds

    def asked_directly(self, operation: str, *arguments: Any) -> Any:
        return run_blocking(getattr(self.direct, operation)(*arguments, until=self.until(DIRECT)))

    def held_by(self, want: Want) -> list[int]:
        """The tokens that the real server says are held by it."""
        status = self.asked_directly("status", want.name)
        return [one.token for one in status.holders if one.about == want.about] if status is not None else []

    @contextlib.contextmanager
    def rival_holding(self, name: str) -> Iterator[None]:
        """Somebody else holds the name meanwhile."""
        rival = fresh()._replace(name=name)
        assert isinstance(run_blocking(self._rival.take(rival, until=self.until(DIRECT))), Grant)
        yield
        run_blocking(self._rival.release(name, rival.holder, until=self.until(DIRECT)))

    def taken(self, want: Want) -> int:
        """Take a free name while the server is right; returns the token."""
        for _ in range(TRIES):
            answer = self.surely(lambda: self.engine.take(want, until=self.until(PATIENT)))
            if isinstance(answer, Grant):
                return answer.token
        # Once it may have been the answer to an earlier request, which said that a name is not free.
        raise AssertionError(f"a free name is refused again and again, after {self.struck}")

    def given_back(self, want: Want) -> None:
        """Give back what it may hold."""
        self.surely(lambda: self.engine.release(want.name, want.holder, until=self.until(PATIENT)))

    # What is asked while an answer is spoiled

    def surely(self, operation: Operation) -> Any:
        """Do it while the server is right: what an earlier nonsense has broken is mended within a few tries."""
        errors: list[LeaseholdError] = []
        while len(errors) < TRIES:
            try:
                return self.run(operation())
            except LeaseholdError as error:
                errors.append(error)
                time.sleep(0.1 * len(errors))  # some clients pause before they try to connect again
        # A number that was read wrong can be in the way for as long as a session lasts; a new one is right again.
        assert self._changed, f"after {self.struck} and an error: {errors[-1]!r}"
        self.reopen()
        return self.run(operation())

    def spoil(self, chance: random.Random, answers: int) -> None:
        """Spoil one of the next answers: of those that are known to come, and now and then of more."""
        if self._answers is not None and chance.random() > BEYOND:
            answers = self._answers
        self._liar.plan.arm(chance, chance.randrange(answers))

    def hear(self, *operations: Operation) -> Any:
        """What the last operation answered, or the typed error that one of them raised."""
        answer, since = None, time.monotonic()
        try:
            for operation in operations:
                answer = self.run(operation())
        except LeaseholdError as error:
            text = str(error)
            assert text and "\n" not in text and len(text) < 1000, text  # noqa: PT018
            answer = error
        finally:
            self.struck = self._liar.plan.disarm()
            if self.struck is None and not isinstance(answer, LeaseholdError):
                self._answers = max(self._answers or 1, self._liar.plan.passed_on)
            self._changed |= self.struck is not None and not self.struck.hangs_up
        assert time.monotonic() - since < LONGEST, f"it took its time after {self.struck}"
        if self.struck is None and self._changed and isinstance(answer, LeaseholdError):
            self.reopen()  # what an earlier nonsense broke may last as long as a session
        return answer


# The steps: each sets its scene, has one of the next answers spoiled, and returns what the engine said


def enter(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.reopen()
    stage.spoil(chance, 8)
    return stage.hear(lambda: stage.engine.take(mine, until=stage.until(IMPATIENT)))


def take(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.spoil(chance, 2)
    return stage.hear(lambda: stage.engine.take(mine, until=stage.until(IMPATIENT)))


def take_held(stage: Stage, mine: Want, chance: random.Random) -> Any:
    with stage.rival_holding(mine.name):
        stage.spoil(chance, 2)
        answer = stage.hear(lambda: stage.engine.take(mine, until=stage.until(IMPATIENT)))
        judge(stage, mine, answer)
    return answer


def queue(stage: Stage, mine: Want, chance: random.Random) -> Any:
    with stage.rival_holding(mine.name):
        stage.spoil(chance, 3)
        answer = stage.hear(lambda: stage.engine.take(mine, until=stage.until(IMPATIENT), patience=60.0))
        judge(stage, mine, answer)
    return answer


def turn(stage: Stage, mine: Want, chance: random.Random) -> Any:
    with stage.rival_holding(mine.name):
        stage.surely(lambda: stage.engine.take(mine, until=stage.until(PATIENT), patience=60.0))
        stage.spoil(chance, 4)
    return stage.hear(
        lambda: stage.engine.wait(mine, stage.until(IMPATIENT)),
        lambda: stage.engine.take(mine, until=stage.until(IMPATIENT), patience=60.0),
    )


def renew(stage: Stage, mine: Want, chance: random.Random) -> Any:
    lease = Renewal(mine.name, mine.holder, stage.taken(mine), TTL)
    stage.spoil(chance, 2)
    return stage.hear(lambda: stage.engine.renew([lease], until=stage.until(IMPATIENT)))


def renew_lost(stage: Stage, mine: Want, chance: random.Random) -> Any:
    lease = Renewal(mine.name, mine.holder, stage.taken(mine), TTL)
    stage.asked_directly("force_release", mine.name)
    stage.spoil(chance, 2)
    return stage.hear(lambda: stage.engine.renew([lease], until=stage.until(IMPATIENT)))


def release(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.taken(mine)
    stage.spoil(chance, 2)
    answer = stage.hear(lambda: stage.engine.release(mine.name, mine.holder, until=stage.until(IMPATIENT)))
    assert answer is not True or not stage.held_by(mine), f"a false release: {stage.struck}"
    return answer


def force_release(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.taken(mine)
    stage.spoil(chance, 3)
    answer = stage.hear(lambda: stage.engine.force_release(mine.name, until=stage.until(IMPATIENT)))
    assert not isinstance(answer, int) or not stage.held_by(mine), f"a false release: {stage.struck}"
    return answer


def status(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.taken(mine)
    stage.spoil(chance, 2)
    return stage.hear(lambda: stage.engine.status(mine.name, until=stage.until(IMPATIENT)))


def names(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.taken(mine)
    stage.spoil(chance, 2)
    return stage.hear(lambda: stage.engine.names(after=None, limit=5, until=stage.until(IMPATIENT)))


def check_purpose(stage: Stage, mine: Want, chance: random.Random) -> Any:
    stage.taken(mine)
    stage.spoil(chance, 2)
    return stage.hear(lambda: stage.engine.check_purpose("correctness", until=stage.until(IMPATIENT)))


STEPS = (
    *(enter, take, take_held, queue, turn, renew, renew_lost, release, force_release),
    *(status, names, check_purpose),
)


def judge(stage: Stage, mine: Want, answer: Any) -> None:
    """Whether what was claimed is what the real server says."""
    if isinstance(answer, Grant):
        held = stage.held_by(mine)
        assert held, f"a false grant: {answer}, after {stage.struck}"
        # A number whose digits were changed on the way is another number, and nothing in it says so.
        changed = stage.struck is not None and stage.struck.how == "bytes"
        assert answer.token in held or changed, f"a false token: {answer}, after {stage.struck}"
    if isinstance(answer, list) and answer == [True]:
        assert stage.held_by(mine), f"a false renewal, after {stage.struck}"


def afterwards(stage: Stage) -> None:
    """The server is right again: nothing that was said before is taken for its answer."""
    other, free = fresh(), fresh()
    with stage.rival_holding(other.name):
        answer = stage.surely(lambda: stage.engine.take(other, until=stage.until(PATIENT)))
        assert isinstance(answer, Busy), f"a false grant: {answer}, after {stage.struck} and an error"
    token = stage.taken(free)
    assert stage.held_by(free) == [token], f"a false grant after {stage.struck} and an error"
    stage.given_back(free)


Step = Callable[[Stage, Want, random.Random], Any]


@pytest.fixture(scope="module", params=ENGINES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_of(request.param, tmp_path_factory.mktemp("server")) as site:
        yield site


def play(site: Site, world: str, step: Step, cases: int, seed: int = 0) -> Counter[str]:
    counts: Counter[str] = Counter()
    with site.liar(site.port) as liar:
        stage = Stage(site, world, liar)
        try:
            for case in range(MOST_TRIES * cases):
                if counts["spoiled"] == cases:
                    break
                mine = fresh()
                answer = step(stage, mine, random.Random(f"{step.__name__} {seed} {case}"))
                judge(stage, mine, answer)
                if stage.struck:
                    afterwards(stage)
                stage.given_back(mine)
                counts["spoiled" if stage.struck else "right"] += 1
        finally:
            stage.close()
    return counts


@pytest.mark.filterwarnings("ignore::leasehold.errors.GuaranteeWarning")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_nonsense_is_never_taken_for_a_grant(site: Site, step: Step) -> None:
    cases = site.cases(step, BY_DAY)
    assert play(site, "blocking", step, cases)["spoiled"] == cases


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::leasehold.errors.GuaranteeWarning")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_thousand_times(site: Site, step: Step) -> None:
    """Several at once, each before a liar of its own: most of the time goes by in waiting for what does not come."""
    each = site.cases(step, BY_NIGHT) // len(PLAYERS)
    with ThreadPoolExecutor(len(PLAYERS)) as threads:
        playing = [threads.submit(play, site, world, step, each, seed) for seed, world in enumerate(PLAYERS)]
        counts = sum((player.result() for player in playing), Counter[str]())
    assert counts["spoiled"] == each * len(PLAYERS)


def test_a_notification_that_is_no_text_is_for_nobody() -> None:
    """A hostile PostgreSQL server may name its channels as it likes."""
    said = iter([SimpleNamespace(relname=b"lh_\xff", extra=b"\xfe"), None])
    line = Line.__new__(Line)
    line._pgconn = SimpleNamespace(  # type: ignore[assignment]
        consume_input=lambda: None, notifies=lambda: next(said), status=ConnStatus.OK
    )
    assert line.notifications() == [("lh_\ufffd", "\ufffd")]
