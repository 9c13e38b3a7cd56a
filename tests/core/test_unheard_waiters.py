"""A waiter that could not be woken leaves the queue; but what it got in the meantime is its own."""

from __future__ import annotations

from copy import copy
from pathlib import Path

from tests.engines.sqlite_help import opened, soon, want

from leasehold.core import table
from leasehold.core.engine import Busy, Grant
from leasehold.core.table import Ask, Entry, Taken
from leasehold.core.worlds import run_blocking

SECOND = 1_000_000


def queued(*holders: str) -> Entry:
    entry = Entry()
    for number, holder in enumerate(holders):
        ask = Ask(holder, 10 * SECOND, patience=60 * SECOND, address=f"of {holder}")
        assert isinstance(table.take(entry, ask, number, number + 1), Taken) is (number == 0)
    return entry


def test_the_next_one_is_woken_in_its_place() -> None:
    entry = queued("holder", "unheard", "next")
    unheard = table.release(entry, "holder", SECOND).wake
    assert unheard is not None
    woken = table.pass_by(entry, unheard, SECOND)
    assert woken is not None
    assert woken.holder == "next"
    assert [place.holder for place in entry.queue] == ["next"]


def test_one_that_came_for_its_lease_by_itself_keeps_it() -> None:
    entry = queued("holder", "unheard", "next")
    unheard = copy(table.release(entry, "holder", SECOND).wake)
    assert unheard is not None
    assert isinstance(table.take(entry, Ask("unheard", 10 * SECOND), SECOND, SECOND), Taken)
    assert table.pass_by(entry, unheard, SECOND) is None
    assert [seat.holder for seat in entry.seats] == ["unheard"]
    assert [place.holder for place in entry.queue] == ["next"]


def test_one_that_is_back_with_another_address_keeps_its_place() -> None:
    entry = queued("holder", "unheard", "next")
    unheard = copy(entry.queue[0])
    back = Ask("unheard", 10 * SECOND, patience=60 * SECOND, address="anew")
    assert not isinstance(table.take(entry, back, SECOND, SECOND), Taken)
    assert table.pass_by(entry, unheard, SECOND) is None
    assert [place.holder for place in entry.queue] == ["unheard", "next"]


def test_one_whose_patience_ran_out_meanwhile_does_not_keep_the_next_from_being_woken() -> None:
    entry = queued("holder", "unheard", "next")
    unheard = table.release(entry, "holder", SECOND).wake
    assert unheard is not None
    entry.queue[0].until = 2 * SECOND
    woken = table.pass_by(entry, unheard, 3 * SECOND)
    assert woken is not None
    assert woken.holder == "next"


def test_on_a_file_the_late_clearing_up_ends_no_lease(tmp_path: Path) -> None:
    with opened(tmp_path / "l.db") as engine:
        assert isinstance(run_blocking(engine.take(want("n", "holder"), until=soon(engine))), Grant)
        waits = run_blocking(engine.take(want("n", "waiter"), until=soon(engine), patience=30))
        assert isinstance(waits, Busy)
        unheard = table.Place("waiter", "exclusive", 1, 0, 0, "nowhere")
        assert run_blocking(engine.release("n", "holder", until=soon(engine)))
        assert isinstance(run_blocking(engine.take(want("n", "waiter"), until=soon(engine))), Grant)
        run_blocking(engine._wake("n", unheard, soon(engine)))
        assert run_blocking(engine.release("n", "waiter", until=soon(engine))), "its lease was ended by another"
