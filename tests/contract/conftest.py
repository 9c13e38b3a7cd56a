"""The two worlds of a scenario play at the same time, each in a namespace of its own: most of it is waiting.

The test of the first world plays both, and the test of the other one tells what came of its own. A scenario that stops
the engine, looks at the whole process or keeps it busy plays alone.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.support.stalls import note_start

from leasehold.testing.stage import BOTH, Stage

Outcome: TypeAlias = Future[None]
NEXT = pytest.StashKey[pytest.Item | None]()
PLAYED = pytest.StashKey[Outcome]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Remember which test comes next."""
    item.stash[NEXT] = nextitem
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Play a scenario beside its other world, or tell what came of it there."""
    if PLAYED in pyfuncitem.stash:
        played = pyfuncitem.stash[PLAYED]
        del pyfuncitem.stash[PLAYED]  # if it is run again, it plays alone
        try:
            played.result()
        finally:
            del played  # its error leads back here: a circle that would keep the stage with its connections
        return True
    other = _other_world(pyfuncitem)
    if other is None:
        return None
    own = pyfuncitem.funcargs["stage"]
    assert isinstance(own, Stage)
    more = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters if name != "stage"}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1, "other-world") as beside:
        note_start(other)
        [world] = [one for one in BOTH if one != own.world]
        stage = Stage(own.engine, world, Path(folder))
        other.stash[PLAYED] = beside.submit(other.obj, stage, **more)
        pyfuncitem.obj(own, **more)
    return True


def _other_world(item: pytest.Function) -> pytest.Function | None:
    """The next test, if it is the same scenario in the other world and need not play alone."""
    other = item.stash.get(NEXT, None)
    if not isinstance(other, pytest.Function) or getattr(item.obj, "plays_alone", True):
        return None
    same = (item.path, item.originalname) == (other.path, other.originalname)
    return other if same and _but_for_world(item) == _but_for_world(other) else None


def _but_for_world(item: pytest.Function) -> dict[str, object]:
    return {name: value for name, value in item.callspec.params.items() if name != "world"}
