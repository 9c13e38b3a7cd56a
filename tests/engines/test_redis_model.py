"""The scripts do what the lease table says, by chance and in sequences that chance seldom finds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.engines.redis_help import ENGINES
from tests.engines.redis_model import RETENTION, START, TEXTS, Directed, ScriptsAndTable
from tests.support.redis_server import RedisServer, running

from leasehold.core import table
from leasehold.engines import redis_scripts as scripts


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(RedisServer(request.param, tmp_path_factory.mktemp(request.param))) as server:
        yield server


def test_scripts_do_what_the_table_says(server: RedisServer) -> None:
    class OnThisServer(ScriptsAndTable):
        def __init__(self) -> None:
            super().__init__(server)

    run_state_machine_as_test(
        OnThisServer,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def directed(server: RedisServer) -> Iterator[Directed]:
    machine = Directed(server)
    machine.begin()
    yield machine
    machine.teardown()


@pytest.mark.parametrize("floor", [START + 1, START * 4, 7])
def test_a_token_is_above_the_floor_whatever_the_clock_says(directed: Directed, floor: int) -> None:
    directed.ask("h0", floor=floor)
    assert directed.entry.token > floor
    directed.give_back("h0")
    directed.ask("h1")
    assert directed.entry.token > max(floor, START)


def test_a_clock_far_behind_the_floor_has_fewer_digits(directed: Directed) -> None:
    directed.now = 6_000_000_000
    directed.set_clock()
    directed.ask("h0", floor=1_794_000_000_000_000)
    assert directed.entry.token == 1_794_000_000_000_001


@pytest.mark.parametrize("step", [4_999_999, 5_000_000, 5_000_001])
@pytest.mark.parametrize("then", ["take", "release", "renew", "queue"])
def test_a_lease_ends_at_its_very_microsecond(directed: Directed, step: int, then: str) -> None:
    directed.ask("h0")
    directed.time_passes(step=step)
    match then:
        case "take":
            directed.ask("h1")
        case "release":
            directed.give_back("h0")
        case "renew":
            directed.renew(holder="h0", ttl=5_000_000, wrong=False)
        case _:
            directed.ask("h1", patience=10_000_000)
    held_by = [seat.holder for seat in directed.entry.seats]
    assert held_by == (
        ["h0"] if step < 5_000_000 and then != "release" else ["h1"] if then in {"take", "queue"} else []
    )


@pytest.mark.parametrize("step", [1_999_999, 2_000_000])
def test_a_hung_waiter_is_passed_over_after_its_turn(directed: Directed, step: int) -> None:
    directed.listen("h1", "h2", "h3")
    directed.ask("h0")
    for holder in ("h1", "h2", "h3"):
        directed.ask(holder, patience=600_000_000)
    directed.time_passes(step=table.PROMPT)
    directed.give_back("h0")
    directed.time_passes(step=step)
    directed.ask("h2", patience=600_000_000)
    assert [seat.holder for seat in directed.entry.seats] == (["h2"] if step >= 2_000_000 else [])
    assert [place.holder for place in directed.entry.queue] == (["h3"] if step >= 2_000_000 else ["h1", "h2", "h3"])


@pytest.mark.parametrize("patience", [5_000_000, 600_000_000])
def test_who_has_moved_up_to_the_head_is_told_where_it_would_look_too_late(directed: Directed, patience: int) -> None:
    waiters = [f"h{number}" for number in range(1, table.NEAR + 3)]
    directed.listen(*waiters)
    directed.ask("h0", ttl=1_000_000)
    for holder in waiters:
        directed.ask(holder, ttl=1_000_000, patience=patience)
    directed.time_passes(step=table.PROMPT)
    for before, following in zip(["h0", *waiters], waiters[:-1], strict=False):
        directed.give_back(before)
        directed.told.clear()
        directed.ask(following, ttl=1_000_000, patience=patience)
    assert directed.told == waiters[-1:], "this one was not near when it came"


def handed_over(directed: Directed, *, ttl: int = 5_000_000, after: int = 0, **settings: Any) -> bool:
    """Whether the next in the queue holds the name as soon as it is given back, so long after having asked."""
    directed.listen("h1", "h2")
    directed.ask("h0", ttl=ttl)
    directed.ask("h1", ttl=ttl, patience=600_000_000, **settings)
    directed.ask("h2", ttl=ttl, patience=600_000_000)
    directed.time_passes(step=after)
    directed.give_back("h0")
    return [seat.holder for seat in directed.entry.seats] == ["h1"]


def test_who_has_asked_only_now_is_handed_the_name(directed: Directed) -> None:
    directed.ask("h0")
    before = directed.entry.token
    directed.give_back("h0")
    directed.time_passes(step=1)
    assert handed_over(directed, after=1_000, delay=3_000_000)
    assert directed.entry.token > before
    assert directed.entry.seats[0].delay == 3_000_000
    assert [place.holder for place in directed.entry.queue] == ["h2"]
    directed.ask("h1", patience=600_000_000)  # a lost wake-up: whoever asks again finds itself holding
    directed.time_passes(step=1_000)
    directed.give_back("h1")
    assert [seat.holder for seat in directed.entry.seats] == ["h2"]


@pytest.mark.parametrize(
    ("ttl", "after", "is_handed"),
    [(5_000_000, 249_999, True), (5_000_000, 250_000, False), (1_000_000, 124_999, True), (1_000_000, 125_000, False)],
)
def test_only_who_has_asked_a_moment_ago_is_handed_the_name(
    directed: Directed, *, ttl: int, after: int, is_handed: bool
) -> None:
    assert handed_over(directed, ttl=ttl, after=after) is is_handed


def test_nobody_is_handed_a_name_by_a_clock_that_was_set_back(directed: Directed) -> None:
    assert not handed_over(directed, after=-1_000)


def test_nobody_is_handed_a_token_that_is_not_above_its_floor(directed: Directed) -> None:
    assert not handed_over(directed, after=1_000, floor=START + 2_000)


def test_a_reader_is_not_handed_the_name(directed: Directed) -> None:
    assert not handed_over(directed, after=1_000, mode="shared")


def test_nobody_is_handed_the_name_who_is_not_there(directed: Directed) -> None:
    directed.ask("h0")
    directed.ask("h1", patience=600_000_000)
    directed.ask("h2", patience=600_000_000)
    directed.listen("h2")
    directed.time_passes(step=1_000)
    directed.give_back("h0")
    assert directed.entry.seats == []
    assert [place.holder for place in directed.entry.queue] == ["h2"]


def test_the_longest_lock_delay_counts(directed: Directed) -> None:
    directed.ask("h0", mode="permit", limit=3, delay=9_000_000, ttl=1_000_000)
    directed.ask("h1", mode="permit", limit=3, delay=3_000_000, ttl=5_000_000)
    directed.time_passes(step=5_000_000)
    directed.ask("h2", patience=600_000_000)
    assert directed.entry.closed_until == START + 10_000_000
    directed.time_passes(step=5_000_000)
    directed.ask("h2", patience=600_000_000)
    assert [seat.holder for seat in directed.entry.seats] == ["h2"]


def test_a_writer_is_not_starved_by_readers_that_keep_coming(directed: Directed) -> None:
    directed.listen("h1", "h3")
    directed.ask("h0", mode="shared")
    directed.ask("h1", patience=600_000_000)
    directed.ask("h2", mode="shared")
    assert [seat.holder for seat in directed.entry.seats] == ["h0"]
    directed.ask("h3", mode="shared", patience=600_000_000)
    directed.give_back("h0")
    directed.ask("h1", patience=600_000_000)
    assert [seat.holder for seat in directed.entry.seats] == ["h1"]


def test_a_reader_at_the_head_asks_nobody_behind_it(directed: Directed) -> None:
    directed.listen("h1", "h2", "h3")
    directed.ask("h0")
    directed.ask("h1", mode="shared", patience=600_000_000)
    directed.ask("h2", mode="shared", patience=600_000_000)
    directed.ask("h3", patience=600_000_000)
    directed.give_back("h0")
    directed.ask("h1", mode="shared", patience=600_000_000)
    directed.ask("h2", mode="shared", patience=600_000_000)
    assert [seat.holder for seat in directed.entry.seats] == ["h1", "h2"]


def test_all_waiting_readers_are_let_in_one_after_the_other(directed: Directed) -> None:
    directed.listen("h1", "h2")
    directed.ask("h0")
    for holder in ("h1", "h2", "h3"):
        directed.ask(holder, mode="shared", patience=600_000_000)
    directed.give_back("h0")
    for holder in ("h1", "h2"):
        directed.ask(holder, mode="shared", patience=600_000_000)
    assert [seat.holder for seat in directed.entry.seats] == ["h1", "h2"]
    assert directed.entry.queue == []  # nobody listens for h3 any more


def test_the_scripts_use_the_tables_own_numbers() -> None:
    numbers = f"local TURN, NEAR, LONGEST_SILENCE = {table.TURN}, {table.NEAR}, {table.LONGEST_SILENCE}"
    assert numbers in scripts.TAKE.text
    assert f"local LATENESS, SLACK = {table.LATENESS}, {table.SLACK}" in scripts.TAKE.text
    assert f"local RETENTION_MS = '{RETENTION}'" in scripts.TAKE.text
    assert f"local PROMPT = {table.PROMPT}" in scripts.RELEASE.text


def test_scripts_name_no_key_but_those_that_they_are_given() -> None:
    for name, text in TEXTS.items():
        with contextlib.suppress(AttributeError):
            called = re.findall(r"redis\.p?call\('(\w+)', ([A-Za-z_]+)", getattr(scripts, name).text)
            keys = {"HEAD", "SEATS", "ENDS", "QUEUE", "UNTILS", "PLACES", "KEYS"}
            assert {argument for command, argument in called} <= keys, text
