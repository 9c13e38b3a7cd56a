"""Patterns beside the libraries that people use today, run for real in tiny rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from tests.bench.test_running import TINY

from leasehold.bench import patterns
from leasehold.bench.effort import Run, Steps
from leasehold.bench.places import Place, private_places
from leasehold.bench.results import Table

# What libraries leave open, or say about themselves, is not ours to turn into errors.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def places() -> Iterator[list[Place]]:
    with private_places(["sqlite", "redis", "zookeeper"]) as (found, missing):
        assert not missing, missing
        yield found


@pytest.fixture(scope="module")
def tables(places: list[Place]) -> dict[str, Table]:
    return {table.title: table for table in patterns.measure(Run(places, TINY, Steps())).tables}


def test_jobs_and_election_and_partitions_are_measured_beside_libraries(tables: dict[str, Table]) -> None:
    """Those whose libraries come with the development tools; the others where they are installed."""
    assert {"Jobs: one run", "Jobs: nothing to do", "Election: one term"} <= tables.keys()
    assert any(title.startswith("Partitions: one member owns") for title in tables)


def test_the_library_is_what_a_ratio_is_to(tables: dict[str, Table]) -> None:
    for table in tables.values():
        library, *ours = table.rows
        assert not library.who.startswith("Leasehold")
        assert library.figures[patterns.RATIO].value == 1.0
        assert ours
        for row in ours:
            assert row.who.startswith("Leasehold")
            assert row.figures[patterns.RATIO].value > 0
            assert 0 < row.figures[patterns.MIDDLE].value <= row.figures[patterns.SLOWEST].value
        assert table.notes, "what is compared is said"


def test_nothing_is_measured_on_an_engine_that_is_not_ours(places: list[Place]) -> None:
    theirs = [dataclasses.replace(place, private=False) for place in places]
    assert not patterns.measure(Run(theirs, TINY, Steps())).tables
