"""What fences, keys, retries and elections say to whoever watches; and the warnings about crowds."""

from __future__ import annotations

import logging
import sqlite3
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy
from tests.telemetry.conftest import wait_for

from leasehold import (
    InProgress,
    KeyReused,
    Leasehold,
    StaleToken,
    TokenJump,
    TokenUsed,
    TooManyConflicts,
    VersionConflict,
    contention,
)
from leasehold.contention import FEWEST_WAITS, WINDOW, Crowds, advice
from leasehold.errors import quoted
from leasehold.events import Conflicting, Crowded, Elected, Event, GaveUp, Keyed, Refused, Resigned, Tried
from leasehold.fences import ColumnFence, FileFence, SqlFence, SqliteFence
from leasehold.fences.rule import DAY
from leasehold.patterns.election import Election
from leasehold.patterns.idempotency import Idempotency, SqlKeys
from leasehold.patterns.optimistic import FEWEST_ATTEMPTS, retry_on_conflict


def test_a_fence_tells_of_each_refusal_once(tmp_path: Path, seen: list[Event]) -> None:
    fence = FileFence(tmp_path)
    fence.write("report.txt", 35, b"new")
    with pytest.raises(StaleToken):
        fence.write("report.txt", 34, b"old")
    with pytest.raises(TokenJump):
        fence.write("report.txt", 2**62, b"absurd")
    assert seen == [Refused("report.txt", 34, "stale", 35), Refused("report.txt", 2**62, "jump", 35)]


def test_a_fence_in_sqlite_tells_of_a_token_that_was_used(seen: list[Event]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    fence = SqliteFence(connection)
    fence.create()
    for _ in range(2):
        try:
            with fence.writing("account/42", 7, once=True):
                pass
        except TokenUsed:
            break
    assert seen == [Refused("account/42", 7, "used", None)]
    connection.close()


def test_a_row_that_is_gone_still_refuses_and_tells(seen: list[Event]) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        SqlFence(connection).create()
        connection.exec_driver_sql("CREATE TABLE account (id INTEGER PRIMARY KEY, fence BIGINT NOT NULL DEFAULT -1)")
        fence = ColumnFence(connection, "account")
        fence.insert(42, 7, {})
        fence.delete(42, 8)
        with pytest.raises(StaleToken):
            fence.update(42, 7, {})
    engine.dispose()
    assert seen == [Refused("account/42", 7, "stale", 8)]


def test_an_absurd_token_needs_no_jump_of_a_day() -> None:
    assert DAY < 2**62, "the test above relies on it"


def test_keys_tell_what_came_of_each_call(tmp_path: Path, seen: list[Event]) -> None:
    store = SqlKeys(tmp_path / "app.db")
    store.create()
    keys = Idempotency(store, scope="shop")
    keys.once("order-7", lambda _run: 1, payload=7)
    keys.once("order-7", lambda _run: 1, payload=7)
    with pytest.raises(KeyReused):
        keys.once("order-7", lambda _run: 1, payload=8)
    with pytest.raises(ZeroDivisionError):
        keys.once("order-8", lambda _run: 1 // 0)

    def asks_again(_run: object) -> None:
        with pytest.raises(InProgress):
            keys.once("order-9", lambda _run: 1)

    keys.once("order-9", asks_again)
    store.close()
    assert [(event.scope, event.key, event.outcome) for event in seen if isinstance(event, Keyed)] == [
        ("shop", "order-7", "ran"),
        ("shop", "order-7", "replayed"),
        ("shop", "order-7", "reused"),
        ("shop", "order-8", "failed"),
        ("shop", "order-9", "in progress"),
        ("shop", "order-9", "ran"),
    ]


def test_retries_tell_how_many_attempts_they_took(seen: list[Event]) -> None:
    in_vain = iter([True, True, False, True, True])

    @retry_on_conflict(attempts=3)
    def write() -> str:
        if next(in_vain, True):
            raise VersionConflict("planted")
        return "written"

    assert write() == "written"
    with pytest.raises(TooManyConflicts):
        write()
    name = write.__qualname__
    assert seen == [Tried(name, 3, 2, False), Tried(name, 3, 3, True)]


def test_an_election_tells_who_leads_and_why_it_ends(locks: Leasehold, seen: list[Event]) -> None:
    with Election(locks, "billing/leader", ttl=10).lead() as term:
        term.resign("the disk is full")
    assert [event for event in seen if isinstance(event, Elected | Resigned)] == [
        Elected("billing/leader", term.token),
        Resigned("billing/leader", term.token, "the disk is full"),
    ]


def test_a_function_whose_attempts_are_in_vain_is_warned_of_once(
    seen: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "leasehold")

    @retry_on_conflict(attempts=2)
    def crowded() -> None:
        raise VersionConflict("planted")

    for _ in range(FEWEST_ATTEMPTS):
        with pytest.raises(TooManyConflicts):
            crowded()
    [told] = [event for event in seen if isinstance(event, Conflicting)]
    assert told.attempts == told.conflicts == FEWEST_ATTEMPTS
    [record] = caplog.records
    assert "one writer" in record.message
    assert record.message.startswith(quoted(crowded.__qualname__))


def test_few_conflicts_are_not_worth_a_word(seen: list[Event]) -> None:
    calls = 0

    @retry_on_conflict
    def write() -> None:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise VersionConflict("planted")

    for _ in range(4 * FEWEST_ATTEMPTS):
        write()
    assert not [event for event in seen if isinstance(event, Conflicting)]


def waits(crowds: Crowds, count: int, seconds: float, *, every: float, start: float = 1000.0) -> list[float]:
    """When something was said, after so many waits at a steady pace."""
    said = []
    for number in range(count):
        now = start + number * every
        if crowds.waited("x", seconds, now) is not None:
            said.append(now)
    return said


def test_a_crowd_is_named_once_in_ten_minutes() -> None:
    said = waits(Crowds(), 2000, 0.9, every=1.0)  # 0.9 callers stand in the queue, for 2000 s
    assert len(said) == 4
    assert all(later - earlier >= contention.AGAIN_AFTER for earlier, later in pairwise(said))


def test_few_waits_or_short_ones_are_no_crowd() -> None:
    assert waits(Crowds(), FEWEST_WAITS - 1, 5.0, every=1.0) == []
    assert waits(Crowds(), 2000, 0.2, every=1.0) == []
    assert waits(Crowds(), FEWEST_WAITS, 0.01, every=0.01) == [], "a burst of a moment"
    assert waits(Crowds(), 100, 30.0, every=WINDOW + 1) == [], "those that are seldom, however long"


def test_names_that_were_waited_for_once_do_not_pile_up() -> None:
    crowds = Crowds()
    for number in range(5 * contention.MOST_NAMES):
        crowds.waited(f"order/{number}", 1.0, float(number))
    assert len(crowds._by_name) <= contention.MOST_NAMES


def test_the_advice_fits_the_waits() -> None:
    assert "optimistic" in advice("x", waits=100, waited=5.0, within=8.0)
    assert "each entity" in advice("x", waits=20, waited=50.0, within=30.0)
    assert "\n" not in advice("x\ny", waits=20, waited=50.0, within=30.0)


def test_callers_that_wait_all_the_time_are_warned(
    locks: Leasehold, seen: list[Event], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "FEWEST_WAITS", 3)
    monkeypatch.setattr(contention, "SHORTEST_LOOK", 0.1)
    monkeypatch.setattr(contention, "CROWDED", 0.001)  # however late this machine starts the threads
    caplog.set_level(logging.WARNING, "leasehold")
    with locks.lock("accounts"):
        crew = [threading.Thread(target=locks.lock("accounts", wait=0.5).try_acquire) for _ in range(2)]
        crew += [threading.Thread(target=_give_up, args=(locks,)) for _ in range(4)]
        for one in crew:
            one.start()
        for one in crew:
            one.join(30)
    wait_for(lambda: len([event for event in seen if isinstance(event, GaveUp)]) == 6, "all gave up")
    [told] = [event for event in seen if isinstance(event, Crowded)]
    assert told.about.name == "accounts"
    assert told.waited >= 0.001 * told.within
    [record] = caplog.records
    assert record.message == told.advice


def _give_up(locks: Leasehold) -> None:
    from leasehold import NotAcquired

    with pytest.raises(NotAcquired), locks.lock("accounts", wait=0.5):
        pass
