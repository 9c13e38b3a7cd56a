"""The quorum's scripts against their meaning in `core/quorum_server.py`, step by step, on real servers.

The scripts are the product's own text, but for two words: the time comes from a key that the test sets, and nothing
ends by the server's own clock; the test ends leases itself, on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.engines.redis_help import ENGINES
from tests.support.redis_server import RedisServer, running

from leasehold.core.quorum import AskConfirm, AskGrant, AskRelease, Occupied, Request
from leasehold.core.quorum_server import Server, carry_out
from leasehold.engines import redlock_scripts as scripts
from leasehold.wires.redis_replies import ErrorReply, new_reader

CLOCK = "the-clock-of-the-test"
START = 2_000_000_000_000_000
FOREVER = 1_000_000.0
QUARANTINE = 65_000_000
NAME = "n"
HOLDERS = st.integers(0, 3).map("h{}".format)
ROUNDS = st.integers(1, 4)
FLOORS = st.sampled_from([0, START - 5, START + 10, START + 500_000, START + 10**9])
STEPS = st.sampled_from([1, 1, 1_000, 1_000_000, 30_000_000, 70_000_000, -500_000])
PATIENCES = st.sampled_from([None, None, 5.0, 600.0])
RUNS = st.sampled_from(["run-a"] * 12 + ["run-b"])
DURABLE = st.sampled_from([True, True, True, True, False])


def with_test_clock(text: str) -> str:
    """The script's text, with the time taken from a key, and a reservation that does not end by itself."""
    for old, new in (
        ("redis.call('TIME')", f"redis.call('LRANGE', '{CLOCK}', 0, 1)"),
        ("QUEUE_KEPT_MS = '100'", "QUEUE_KEPT_MS = '1000000000'"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


TEXTS = {kind: with_test_clock(getattr(scripts, kind).text) for kind in ("GRANT", "CONFIRM", "RELEASE")}


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(RedisServer(request.param, tmp_path_factory.mktemp(request.param))) as server:
        yield server


class ScriptsAndMeaning(RuleBasedStateMachine):
    """Drives both with the same requests, on connections to one run of the server or another."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.ask_server = server.client()
        self.listener = server.client(resp3=True)
        self.listener("SUBSCRIBE", "channel")
        self.digests = {kind: self.ask_server("SCRIPT", "LOAD", text) for kind, text in TEXTS.items()}
        self.keys = self._keys()

    @staticmethod
    def _keys() -> list[bytes]:
        """The keys as the product names them, read from a request of its own."""
        reader = new_reader()
        request = scripts.request_for(AskRelease(NAME, "h"), "")
        reader.feed(request + b"$1\r\nx\r\n" * scripts.FROM_CONNECTION)
        parsed = reader.gets()
        return list(parsed[3 : 3 + scripts.KEYS])

    @initialize(new=st.booleans())
    def begin(self, new: bool) -> None:
        self.ask_server("FLUSHALL")
        self.now = START
        self.tell_time()
        self.model = Server()
        if not new:
            self.model = Server(0, 0, 0, "run-a", True)
            self.ask_server("SET", self.keys[4], "0 0 0 run-a 1")

    def teardown(self) -> None:
        self.ask_server.close()
        self.listener.close()

    def tell_time(self) -> None:
        self.ask_server("DEL", CLOCK)
        self.ask_server("RPUSH", CLOCK, self.now // 1_000_000, self.now % 1_000_000)

    def check(self, request: Request, run: str, durable: bool) -> None:
        kind = {AskGrant: "GRANT", AskConfirm: "CONFIRM", AskRelease: "RELEASE"}[type(request)]
        reader = new_reader()
        reader.feed(scripts.request_for(request, "") + b"$1\r\nx\r\n" * scripts.FROM_CONNECTION)
        arguments = reader.gets()[3 + scripts.KEYS : -scripts.FROM_CONNECTION]
        added = (f"{run} {int(durable)}", f"{QUARANTINE} channel")
        reply = self.ask_server("EVALSHA", self.digests[kind], len(self.keys), *self.keys, *arguments, *added)
        assert not isinstance(reply, ErrorReply)
        said = scripts.reply_from(request, reply, "the server")
        for lease in self.model.leases.values():
            lease.ends = self.now + 10**15
        meant = carry_out(self.model, request, run=run, durable=durable, quarantine=QUARANTINE, now=self.now)
        if isinstance(said, Occupied) and isinstance(meant, Occupied):
            said, meant = said._replace(left=0.0), meant._replace(left=0.0)
        assert said == meant

    @rule(
        holder=HOLDERS, number=ROUNDS, floor=FLOORS, patience=PATIENCES, since=st.integers(1, 3), run=RUNS,
        durable=DURABLE, force=st.sampled_from([False] * 7 + [True]),
    )  # fmt: skip
    def grant(
        self,
        holder: str,
        number: int,
        floor: int,
        patience: float | None,
        since: int,
        run: str,
        durable: bool,
        force: bool,
    ) -> None:
        ask = AskGrant(NAME, holder, number, FOREVER, floor, f"about {holder}", patience, since, force)
        self.check(ask, run, durable)

    @rule(holder=HOLDERS, above=st.sampled_from([-1, 0, 0, 1, 1000]), run=RUNS, durable=DURABLE)
    def confirm(self, holder: str, above: int, run: str, durable: bool) -> None:
        lease = self.model.leases.get(NAME)
        token = max((lease.counter if lease else 0) + above, 1)
        self.check(AskConfirm(NAME, holder, token, FOREVER), run, durable)

    @rule(holder=HOLDERS, number=ROUNDS, leave=st.booleans(), run=RUNS, durable=DURABLE)
    def release(self, holder: str, number: int, leave: bool, run: str, durable: bool) -> None:
        self.check(AskRelease(NAME, holder, number, leave), run, durable)

    @rule(step=STEPS)
    def pass_time(self, step: int) -> None:
        self.now += step
        self.tell_time()

    @rule()
    def end_lease(self) -> None:
        self.ask_server("DEL", self.keys[0])
        self.model.leases.clear()

    @rule()
    def forget_counter(self) -> None:
        self.ask_server("DEL", self.keys[1])
        self.model.counters.clear()

    @rule(chance=st.sampled_from([False] * 5 + [True]))
    def lose_everything(self, chance: bool) -> None:
        if chance:
            self.ask_server("DEL", *self.keys)
            self.model = Server()

    @invariant()
    def counters_agree(self) -> None:
        kept, marker = self.ask_server("GET", self.keys[1]), self.ask_server("GET", self.keys[4])
        assert (int(kept) if kept else None) == self.model.counters.get(NAME)
        if marker is None:
            assert self.model.ready is None
        else:
            ready, highest, base, run, durable = marker.decode().split()
            meant = (self.model.ready, self.model.highest, self.model.base, self.model.run, self.model.durable)
            assert (int(ready), int(highest), int(base), run, durable == "1") == meant


def test_every_answer_is_what_it_means(server: RedisServer) -> None:
    run_state_machine_as_test(
        lambda: ScriptsAndMeaning(server),  # type: ignore[arg-type]
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
