"""Every fence passes every scenario, on the real resource."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable

import pytest
from tests.fences.guards import Guard
from tests.fences.registry import every_kind
from tests.fences.scenarios import SCENARIOS, Scenario

from leasehold.errors import StaleToken

Fresh = Callable[[], Guard]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Scenario, guard: Guard) -> None:
    scenario(guard)


def test_checks_on_writes_alone_lose_an_update(guard: Guard) -> None:
    """Why reads are fenced: here both writes are accepted, and one of them is gone without a word."""
    new = guard.another()
    guard.write(1, "10")
    seen_by_new = new.peek()
    guard.write(1, "11")  # the stale holder's: nobody has told the resource of token 2
    new.write(2, f"{seen_by_new} and more")
    assert guard.peek() == "10 and more"


def test_an_announcement_serves_as_well_as_a_fenced_read(guard: Guard) -> None:
    new = guard.another()
    guard.write(1, "10")
    new.announce(2)
    seen_by_new = new.peek()
    with pytest.raises(StaleToken):
        guard.write(1, "11")
    new.write(2, f"{seen_by_new} and more")
    assert guard.peek() == "10 and more"


def lost_updates(fresh: Fresh, read: Callable[[Guard, int], str | None]) -> tuple[int, int]:
    """Let overlapping holders count up; return how many of them were told yes, and how much of that is gone."""
    first = fresh()
    first.write(0, "0")
    tokens, accepted = itertools.count(1), []
    holders, rounds = 4, 8
    start = threading.Barrier(holders)
    failures: list[BaseException] = []

    def work() -> None:
        mine = first.another()
        mine_patience = random.Random(threading.get_ident())
        for _ in range(rounds):
            start.wait(timeout=60)
            try:
                token = next(tokens)
                value = int(read(mine, token) or 0)
                time.sleep(mine_patience.random() / 100)
                mine.write(token, str(value + 1))
                accepted.append(token)
            except StaleToken:
                pass

    def guarded_work() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- raised again below, in the test's own thread
            failures.append(error)
            start.abort()

    workers = [threading.Thread(target=guarded_work) for _ in range(holders)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    total = int(first.peek() or 0)
    first.close()
    return len(accepted), len(accepted) - total


@pytest.mark.parametrize("kind", every_kind())
def test_racing_holders_lose_nothing_when_reads_are_fenced(kind: str, fresh_of: Callable[..., Fresh]) -> None:
    accepted, lost = lost_updates(fresh_of(kind, patience=30), lambda guard, token: guard.read(token))
    assert accepted >= 8, "in every round at least the highest token is accepted"
    assert lost == 0


@pytest.mark.parametrize("kind", ["sqlite", "redis", "redis asyncio", "etcd", "zookeeper", "dynamodb"])
def test_racing_holders_lose_updates_when_only_writes_are(kind: str, fresh_of: Callable[..., Fresh]) -> None:
    """The race is a real one: the same holders, with reads that go past the fence."""
    lost = 0
    for _ in range(20):
        lost = lost_updates(fresh_of(kind, patience=30), lambda guard, _: guard.peek())[1]
        if lost:
            break
    assert lost > 0
