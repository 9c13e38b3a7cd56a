"""The report says what was found, in one file that needs nothing else, and whatever names are called."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.chaos.histories import RUN_INFO, TTL, Story, right
from tests.chaos.test_checkers import _overlap

from leasehold.chaos import report
from leasehold.chaos.checkers import judge
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.history import Event
from leasehold.chaos.report.histogram import duration, histogram, quantile
from leasehold.chaos.run_info import RunInfo

EVIL = '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&'


def evil(history: list[Event]) -> list[Event]:
    """The same history with names that try to be more than names."""
    return [
        replace(
            event,
            name=f"{EVIL}{event.name}" if event.name else "",
            worker=event.worker if event.worker in ("run", "resource") else f"{EVIL}{event.worker}",
            detail={key: f"{EVIL}{one}" if isinstance(one, str) and key not in ("resource", "kind", "mode") else one
                    for key, one in event.detail.items()},
        )
        for event in history
    ]  # fmt: skip


def written(folder: Path, history: list[Event], run: RunInfo = RUN_INFO) -> tuple[str, dict[str, object]]:
    """The page, and the JSON."""
    paths = report.write(folder, history, run, judge(history, run))
    return paths.html.read_text(encoding="utf-8"), json.loads(paths.json.read_text(encoding="utf-8"))


class Tags(HTMLParser):
    """All elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_it_says_what_was_found(tmp_path: Path) -> None:
    history = _overlap(right(5), random.Random(5))
    page, told = written(tmp_path, history, replace(RUN_INFO, left_out={"leader-kill": "there is no leader here"}))
    assert "claims violated" in page
    assert "leader-kill" in page
    assert "there is no leader here" in page
    assert RUN_INFO.command in page
    verdicts = {one["property"]: one for one in told["verdicts"]}  # type: ignore[attr-defined]
    assert verdicts["exclusive"]["status"] == "violated"
    assert verdicts["exclusive"]["violations"][0]["text"] in page
    assert verdicts["exclusive"]["violations"][0]["events"]
    assert verdicts["permits"]["status"] == "not asked"
    assert told["run"]["struck"]["kill"] > 0  # type: ignore[index]
    assert told["run"]["command"] == RUN_INFO.command  # type: ignore[index]


def test_a_run_in_which_all_went_well_says_so(tmp_path: Path) -> None:
    page, told = written(tmp_path, right(5))
    assert "All 9 claims held" in page
    assert {goal["met"] for goal in told["goals"]} <= {True, None, False}  # type: ignore[attr-defined]
    assert "violated" not in {one["status"] for one in told["verdicts"]}  # type: ignore[attr-defined]


def test_what_a_lock_alone_lets_through_is_shown_where_no_fence_is_asked(tmp_path: Path) -> None:
    """A library without tokens: no fence can help it, and the reader is to see that."""
    story = Story()
    first = story.lease("w1", 0.0, 0.1, release=5.0)
    second = story.lease("w2", 0.5, 2.5, release=3.0)
    story.write(2.6, "w2", second, None, "b", side="plain")
    story.write(4.0, "w1", first, None, "a", side="plain")
    page, _ = written(tmp_path, story.history, replace(RUN_INFO, subject="peer"))
    assert "accepted a write of w1 with an earlier lease after it had seen a later lease of w2" in page
    assert "1 shown" in page


def test_it_says_when_and_where_it_was_made(tmp_path: Path) -> None:
    page, _ = written(tmp_path, right(5))
    assert re.search(r"Made by Leasehold \S+ on 20\d\d-\d\d-\d\d \d\d:\d\d UTC \([^)]*, \d+ processors\)", page)


def test_who_heard_of_a_loss_before_its_deadline_says_nothing_about_who_did_not() -> None:
    """How soon after its own deadline a holder is told is not measured with those whom news had reached before."""
    story = Story()
    for lost in (1.0, 2.13):
        op = story.lease("w1", lost - 1.0, lost - 0.9, 5)
        story.add(lost, "w1", "lost", op, 5)
        story.add(2.1, "w1", "believed until", op, 5, believed=2.1)
    [told] = [one for one in judge(story.history, RUN_INFO) if one.name == "told"]
    assert told.samples["told after its deadline"] == pytest.approx((0.03,))


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    page, _ = written(tmp_path, [])
    assert "0 claims held, 1 unknown" in page


@pytest.mark.parametrize("history", [right(5), evil(_overlap(right(5), random.Random(5)))], ids=["usual", "evil"])
def test_it_needs_nothing_but_itself(tmp_path: Path, history: list[Event]) -> None:
    run = replace(RUN_INFO, command=f"leasehold chaos {EVIL}", address=EVIL, left_out={EVIL: EVIL})
    page, _ = written(tmp_path, history, run)
    tags = Tags(page).found
    kinds = {tag for tag, _ in tags}
    assert not kinds & {"img", "link", "iframe", "object", "embed", "a", "form", "base"}
    assert [attributes.get("type") for tag, attributes in tags if tag == "script"] == ["application/json", None]
    assert not [
        name for _, attributes in tags for name in attributes if name.startswith("on") or name in ("src", "style")
    ]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    policy = next(one["content"] for tag, one in tags if tag == "meta" and one.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_data_of_the_page_is_what_was_recorded(tmp_path: Path) -> None:
    history = evil(right(5))
    page, _ = written(tmp_path, history)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    drawn = json.loads(data[1])
    assert len(drawn["leases"]) == sum(event.kind == "granted" for event in history)
    assert drawn["names"] == sorted({event.name for event in history if event.kind == "ask"})


def test_twenty_thousand_events_make_a_page_of_a_few_megabytes(tmp_path: Path) -> None:
    page, _ = written(tmp_path, right(3, leases=650))
    assert len(page) < 3_000_000


# Goals


GOALS = Path(__file__).parents[2] / "docs" / "data" / "goals.json"


def _goal(story: Story, name: str, run: RunInfo = RUN_INFO) -> report.Goal:
    """The first goal of this id."""
    found = report.goals(Record(story.history, run), judge(story.history, run))
    return next(goal for goal in found if goal.id == name)


def test_a_report_has_every_goal(tmp_path: Path) -> None:
    """With what was seen of it, or with what checks it where no run can."""
    page, told = written(tmp_path, right(5))
    known = {goal["id"] for goal in json.loads(GOALS.read_text(encoding="utf-8"))}
    listed = told["goals"]
    assert isinstance(listed, list)
    assert {goal["id"] for goal in listed} == known
    assert all(bool(goal["seen"]) != bool(goal["shown_by"]) for goal in listed)
    assert all(f"<td>{name}</td>" in page for name in known)


@pytest.mark.parametrize(("believed", "met", "missed_by"), [(2.1, True, ""), (0.05, False, "1"), (None, None, "")])
def test_a_grant_that_was_used_after_its_deadline_misses_a_goal(
    believed: float | None, met: bool | None, missed_by: str
) -> None:
    """Unless the library does not say until when a holder may believe."""
    story = Story()
    story.lease("w1", 0.0, 0.1, 5, release=1.0)
    granted = next(one for one in story.events if one.kind == "granted")
    granted.detail.pop("believed")
    granted.detail.update({} if believed is None else {"believed": believed})
    assert (_goal(story, "R5").met, _goal(story, "R5").missed_by) == (met, missed_by)


def test_a_worker_that_is_hardly_ever_served_misses_a_goal() -> None:
    story = Story()
    for lap in range(60):
        story.lease("w1" if lap else "w2", lap + 0.0, lap + 0.1, lap + 1, release=lap + 0.5)
    shares = _goal(story, "L6")
    assert (shares.met, shares.seen) == (False, "0.03 of a fair share at least, of 2 workers")
    few = Story()
    few.lease("w1", 0.0, 0.1, 5, release=1.0)
    assert _goal(few, "L6").met is None


def test_a_goal_that_was_missed_says_by_how_much() -> None:
    story = Story()
    story.lease("w1", 0.0, 0.1, 1)
    story.fault(1.0, 1.1, "kill", "w1")
    story.lease("w2", 0.5, 1.0 + TTL + 1.2, 2, release=5.0)
    recovery = _goal(story, "L1")
    assert (recovery.id, recovery.met, recovery.missed_by) == ("L1", False, "700 ms")
    assert _goal(story, "L1", replace(RUN_INFO, engine="etcd")).met
    assert _goal(story, "L2").met is None


def test_counted_goals() -> None:
    story = Story()
    story.lease("w1", 0.0, 0.1, 5, release=1.0)
    story.lease("w2", 2.0, 2.1, 5, release=3.0)
    tokens = _goal(story, "R2")
    assert (tokens.id, tokens.met, tokens.missed_by) == ("R2", False, "1")
    assert _goal(story, "R3").met


# Pictures


def test_quantiles() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.95), quantile([3.0], 0.95)) == (50.0, 95.0, 3.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0000305, "30 µs"), (0.0123, "12.3 ms"), (2.345, "2.35 s"), (0.5, "500 ms")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_histogram_counts_everything_and_shows_what_lies_beyond() -> None:
    drawn = histogram("recovery", [0.1, 0.1, 0.2, 3.0], bound=2.5)
    assert drawn.count("<rect") == 3
    assert drawn.count("bar beyond") == 1
    assert "goal 2.5 s" in drawn
    assert histogram("nothing", [0.0])
