"""What the tests of metrics, traces and logs share: an embedded engine, and somebody who watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold.events import Event

PATIENCE = 30.0


def wait_for(condition: Callable[[], object], what: str, within: float = PATIENCE) -> None:
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {within:g} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    """Every event of this process during the test."""
    events: list[Event] = []
    with leasehold.watch(events.append):
        yield events


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def locks(file: Path) -> Iterator[leasehold.Leasehold]:
    with leasehold.Leasehold(file) as client:
        yield client
