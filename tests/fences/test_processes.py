"""Real processes: one that is really stopped, one that is really killed, two that really race."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fences.guards import Guard
from tests.fences.registry import ASYNC_ADAPTERS, FENCES, KINDS, every_kind, opened

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}


@dataclass
class Scene:
    """A resource, a client of it here, and how a process gets there."""

    kind: str
    address: str
    name: str
    guard: Guard

    @contextmanager
    def holder(self, deed: str, token: int) -> Iterator[subprocess.Popen[str]]:
        """Start a holder of the resource; it is gone when the block ends."""
        place = [self.kind, self.address, self.name]
        command = [sys.executable, "-W", "error", "-m", "tests.fences.holder", *place, deed, str(token)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def scene(request: pytest.FixtureRequest, resource: str, address_of: Callable[[str], str]) -> Iterator[Scene]:
    kind = request.param
    address = address_of(KINDS[kind].place)
    guard = opened(kind, address, resource, patience=30)
    yield Scene(kind, address, resource, guard)
    guard.close()


every_fence = pytest.mark.parametrize("scene", FENCES, indirect=True)


@pytest.mark.parametrize("scene", every_kind((*FENCES, *ASYNC_ADAPTERS)), indirect=True)
def test_a_holder_that_was_stopped_is_refused_after_it_thaws(scene: Scene) -> None:
    with scene.holder("stall", 33) as stalled:
        _, status = os.waitpid(stalled.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended instead of freezing"
        scene.guard.write(34, "written by the next holder")
        os.kill(stalled.pid, signal.SIGCONT)
        told, _ = stalled.communicate(timeout=60)
    assert told.split() == ["stale", "33", "34"]
    assert scene.guard.peek() == "written by the next holder"


@every_fence
def test_a_holder_that_was_stopped_goes_on_when_nobody_came_after_it(scene: Scene) -> None:
    """The other half of the proof: it is the token that decides, not the pause."""
    with scene.holder("stall", 33) as stalled:
        _, status = os.waitpid(stalled.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        scene.guard.write(32, "written by the holder before")
        os.kill(stalled.pid, signal.SIGCONT)
        told, _ = stalled.communicate(timeout=60)
    assert told.split() == ["written"]
    assert scene.guard.peek() == "written by the stalled holder"


@pytest.mark.parametrize("scene", every_kind(steps=True), indirect=True)
def test_a_holder_that_is_killed_half_way_leaves_nothing(scene: Scene) -> None:
    scene.guard.write(32, "whole")
    with scene.holder("crash", 33) as crashed:
        assert crashed.wait(timeout=60) == -signal.SIGKILL
    assert (scene.guard.peek(), scene.guard.floor()) == ("whole", 32)
    scene.guard.write(32, "still mine")
    assert scene.guard.peek() == "still mine"


@pytest.mark.parametrize("scene", every_kind(FENCES), indirect=True)
def test_two_processes_that_race_lose_nothing(scene: Scene) -> None:
    scene.guard.write(0, "0")
    with ExitStack() as stack:
        racers = [stack.enter_context(scene.holder("count", token)) for token in (1, 2)]
        accepted = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(accepted) > 0
    assert scene.guard.peek() == str(sum(accepted))
