"""Members that are killed, frozen past their leases, hired and dismissed: order is kept, and nothing is lost or mixed.

Disturbances are aimed at whoever is at work, and go on until each of them has shown something.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from leasehold.patterns.partitions.show.stage import judge_entity
from leasehold.patterns.partitions.show.troupe import Troupe, troupe, wait_for


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Troupe]:
    with troupe(str(tmp_path / "leases.db"), tmp_path, partitions=16, ttl=2.0, work=0.05) as made:
        yield made


def send(group: Troupe, entities: int) -> None:
    for _ in range(4):
        for number in range(entities):
            group.send(f"customer-{number}")


def test_order_is_kept_and_nothing_is_lost_whoever_is_killed_or_frozen(group: Troupe) -> None:
    disturb(group)


@pytest.mark.nightly
def test_so_it_is_at_1024_partitions(tmp_path: Path) -> None:
    with troupe(str(tmp_path / "leases.db"), tmp_path, partitions=1024, ttl=8.0, work=0.05) as many:
        disturb(many, entities=100)


def disturb(group: Troupe, entities: int = 12) -> None:
    """Members join, leave, freeze and die while work comes; the fence and the judge say what came of it."""
    more = partial(send, group, entities)
    for _ in range(3):
        group.hire()
    more()
    for _ in range(2):
        # A worker freezes in the middle of its work, past its lease; another begins anew; the first one thaws.
        frozen = group.freeze_at_work(more)
        wait_for(partial(group.stage.begun_again, frozen), "somebody takes over from the frozen one")
        group.signal(frozen.worker, signal.SIGCONT)
        wait_for(partial(group.stage.refusals, frozen.worker), "what it goes on to write is refused")
        more()
        # A worker is killed in the middle of its work, and another one is hired.
        killed = group.freeze_at_work(more)
        group.signal(killed.worker, signal.SIGKILL)
        group.hire()
        wait_for(partial(group.stage.begun_again, killed), "somebody takes over from the killed one")
        more()
    group.signal(group.workers[0], signal.SIGTERM)
    wait_for(lambda: not group.inbox.waiting(), "everything is handled", within=120.0)
    group.wait_flat(within=120.0)
    assert group.stage.judge(group.put) == []
    assert group.stage.ended() == sum(group.put.values())


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([(0, 7, 1, "begin"), (0, 8, 2, "begin"), (0, 7, 1, "end"), (0, 8, 2, "end")], "token 7 after token 8"),
        ([(0, 7, 1, "begin"), (0, 7, 2, "begin"), (0, 7, 1, "end")], "ended after another had begun"),
        ([(0, 7, 1, "begin"), (0, 7, 1, "end")], "2 messages were handled in the order [0]"),
        ([(1, 7, 1, "begin"), (1, 7, 1, "end"), (0, 7, 1, "begin"), (0, 7, 1, "end")], "in the order [1, 0]"),
    ],
)
def test_the_judge_finds_what_is_wrong(steps: list[tuple[int, int, int, str]], wrong: str) -> None:
    assert any(wrong in text for text in judge_entity(steps, 2))
