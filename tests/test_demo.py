"""The demo tells a true story: real processes, a real stop, a refused write."""

from __future__ import annotations

from pathlib import Path
from sqlite3 import connect

import pytest

from leasehold import demo
from leasehold.worlds import boot_clock


def test_the_stale_write_is_refused_and_the_plain_one_is_lost(tmp_path: Path) -> None:
    """What the reader sees is what happened."""
    demo.prepare(tmp_path)
    told: list[demo.Event] = []
    events = demo.Story(tmp_path, told.append).run()
    assert told == events
    happened = [(event.who, event.what) for event in events]
    assert happened.index(("B", "holds")) < happened.index(("A", "thawed")) < happened.index(("A", "refused"))
    assert ("A", "writes") not in happened
    assert ("A", "told") in happened
    tokens = {event.who: event.facts["token"] for event in events if event.what == "holds"}
    assert tokens["B"] > tokens["A"]
    database = connect(tmp_path / "accounts.db")
    assert demo.balance_of(database, "fenced") == 150
    assert demo.balance_of(database, "plain") == 110
    database.close()


def test_it_ends_with_success_and_takes_less_than_twenty_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's first command."""
    monkeypatch.setattr("sys.argv", ["leasehold-demo"])
    started = boot_clock()
    assert demo.main() == 0
    assert boot_clock() - started < 20
    output = capsys.readouterr().out
    assert "REFUSED" in output
    assert "░" in output
