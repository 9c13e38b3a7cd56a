"""Jobs and refused writes: what others wrote down is shown, bounded, and nothing is written by looking."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.serve.conftest import TOKEN, Served, ServeIt, wait_for
from tests.serve.test_api import check_form
from tests.serve.test_page import HOSTILE, opened
from tests.support.browser import Browser, browser
from tests.support.postgres_server import running_postgres

from leasehold import Leasehold
from leasehold.core.worlds import run_blocking
from leasehold.events import Refused
from leasehold.patterns.jobs import Jobs
from leasehold.patterns.jobs.book import Book, Ended, Missed, Open, as_text, key_of
from leasehold.patterns.jobs.jobs import status_of
from leasehold.patterns.jobs.ledger import book_key, register
from leasehold.patterns.jobs.shelves import Shelf, notes_with
from leasehold.serve import books
from leasehold.telemetry.journal import Journal

__all__ = ["browser"]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "LEAST_PAUSE", 0.1)


@pytest.fixture
def shelf(locks: Leasehold) -> Iterator[Shelf]:
    locks.lock("other").acquire().release()
    with contextlib.closing(notes_with(locks._family, "test")) as notes:
        yield notes


def keep(notes: Shelf, name: str, book: Book) -> None:
    """Let a job have this book."""
    run_blocking(register(notes, "", name))
    version = run_blocking(notes.note(book_key("", name))).version
    assert run_blocking(notes.set_note(book_key("", name), version, as_text(book)))


def tick(ago: float) -> str:
    return key_of(datetime.fromtimestamp(time.time() - ago, UTC))


def run(ago: float, state: Any = "done", *, error: str = "", overran: bool = False) -> Ended:
    now = time.time()
    return Ended(tick(ago + 5), "secret-run-id", state, "host:1", now - ago - 5, now - ago, 1, error, overran)


def keep_some(notes: Shelf) -> None:
    """A job in each state that a person has to tell apart."""
    hourly = "every 3600s"
    now = time.time()
    missed = Missed(tick(9000), tick(5400), 2, "nobody asked in time", now - 60)
    keep(notes, "fine", Book(schedule=hourly, cursor=tick(60), runs=(run(7200, overran=True), run(60))))
    keep(notes, "missed", Book(schedule=hourly, cursor=tick(60), runs=(run(60),), missed=(missed,), missed_in_all=2))
    again = Open(tick(90), 1, error="boom")
    failed = run(60, "failed", error="ValueError: boom")
    keep(notes, "fails", Book(schedule=hourly, cursor=tick(3700), open=again, runs=(run(3700), failed)))
    alive = Open(tick(9), 1, "secret-run-id", "host:2", now - 9, now + 600, data="secret data")
    keep(notes, "works", Book(schedule=hourly, cursor=tick(3700), runs=(run(3700),), open=alive))
    gone = Open(tick(9000), 1, "secret-run-id", "host:3", now - 9000, now - 60)
    keep(notes, "silent", Book(schedule=hourly, cursor=tick(20000), runs=(run(20000),), open=gone))


def overview_with(served: Served, jobs: int) -> Any:
    def look() -> Any:
        overview = served.ask("/api/overview").data
        return overview if overview["job_totals"]["jobs"] == jobs else None

    return wait_for(look, f"{jobs} jobs are seen")


def test_jobs_are_told_those_that_need_somebody_first(served: Served, shelf: Shelf) -> None:
    keep_some(shelf)
    overview = overview_with(served, 5)
    check_form(overview, "Overview")
    told = {job["name"]: job for job in overview["jobs"]}
    assert list(told) == ["silent", "fails", "missed", "fine", "works"]
    assert [told[name]["state"] for name in told] == ["silent", "waits", "done", "done", "under way"]
    assert told["fine"]["recent"] == ["overran", "done"]
    assert (told["works"]["by"], told["silent"]["by"]) == ("host:2", "host:3")
    assert told["works"]["running_for"] >= 9
    assert 60 <= told["fine"]["ended_ago"] < 600
    assert round(told["fine"]["took"]) == 5
    assert told["silent"]["behind"] > 1
    assert overview["job_totals"] == {
        "jobs": 5, "more": False, "under_way": 1, "behind": 1, "overruns": 1, "missed": 2,
    }  # fmt: skip


def test_pages_of_jobs_and_one_of_them(served: Served, shelf: Shelf) -> None:
    keep_some(shelf)
    overview_with(served, 5)
    page = served.ask("/api/jobs?start=1&limit=2").data
    check_form(page, "Jobs")
    assert ([job["name"] for job in page["jobs"]], page["matching"]) == (["fails", "missed"], 5)
    assert [job["name"] for job in served.ask("/api/jobs?text=FI").data["jobs"]] == ["fine"]
    one = served.ask("/api/job?name=fails")
    check_form(one.data, "Job")
    assert [(run["state"], run["error"]) for run in one.data["runs"]] == [("failed", "ValueError: boom"), ("done", "")]
    [report] = served.ask("/api/job?name=missed").data["reports"]
    assert (report["count"], report["why"]) == (2, "nobody asked in time")
    for name in ("works", "silent", "fine"):  # what proves a run, and what it knows, is nobody's business
        assert b"secret" not in served.ask(f"/api/job?name={name}").body
    unknown = served.ask("/api/job?name=never")
    assert (unknown.status, unknown.code) == (404, "unknown_job")


def test_jobs_that_really_ran(served: Served, shelf: Shelf) -> None:
    jobs = Jobs(shelf)
    jobs.once_per("1d", name="well")(lambda _run: "done").__call__()

    def fail(_run: object) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        jobs.once_per("1d", name="badly")(fail)()
    overview = overview_with(served, 2)
    assert {job["name"]: job["state"] for job in overview["jobs"]} == {"well": "done", "badly": "waits"}
    assert "boom" in served.ask("/api/job?name=badly").data["error"]


def test_a_job_that_was_forgotten_goes_away(served: Served, shelf: Shelf) -> None:
    keep_some(shelf)
    overview_with(served, 5)
    keep(shelf, "fine", Book())
    overview_with(served, 4)


def test_many_jobs_are_read_a_part_at_a_time(locks: Leasehold, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "LEAST_PAUSE", 0.0)
    monkeypatch.setattr(books, "MOST_READ", 10)
    monkeypatch.setattr(books, "MOST_JOBS", 25)
    for number in range(30):
        keep(shelf, f"job-{number:02}", Book(schedule="every 60s", cursor=tick(30)))
    seen, read = [], books.Books(locks, "")
    for _ in range(3):
        read.read(within=60)
        seen.append(len(read.jobs))
    assert (seen, read.more) == ([10, 20, 25], True)
    keep(shelf, "job-00", Book(schedule="every 60s", cursor=tick(30), missed_in_all=7))
    read.read(within=0)  # at least one at a time, and then they come round again
    assert (read.jobs["job-00"].missed_in_all, len(read.jobs)) == (7, 25)
    read.close()


def test_a_job_is_there_while_its_book_is_read_again(
    locks: Leasehold, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "LEAST_PAUSE", 0.0)
    keep(shelf, "job", Book(schedule="every 60s", cursor=tick(30)))
    read, seen = books.Books(locks, ""), []

    def looked(*told: Any) -> Any:
        seen.append(read.job("job") is not None)
        return status_of(*told)

    monkeypatch.setattr(books, "status_of", looked)
    read.read(within=60)
    before = read.jobs
    read.read(within=60)
    assert seen == [False, True]
    assert read.jobs is not before  # nobody who goes through them is disturbed
    read.close()


def test_refused_writes_are_told(served: Served, locks: Leasehold) -> None:
    assert served.ask("/api/overview").data["refused"] is None
    with Journal(locks) as journal:
        journal(Refused("invoices", 33, "stale", 34))
        journal(Refused("orders", 2**62, "jump", None))
    overview = wait_for(lambda: (o := served.ask("/api/overview").data)["refused"] and o, "they are seen")
    check_form(overview, "Overview")
    refused = overview["refused"]
    assert (refused["stale"], refused["used"], refused["jump"]) == (1, 0, 1)
    assert [(one["resource"], one["token"], one["seen"]) for one in refused["last"]] == [
        ("orders", str(2**62), None),
        ("invoices", "33", "34"),
    ]


def test_metrics_of_what_was_written_down(served: Served, shelf: Shelf, locks: Leasehold) -> None:
    assert b"job" not in served.ask("/metrics").body  # nothing where nobody has
    keep_some(shelf)
    with Journal(locks) as journal:
        journal(Refused("invoices", 33, "stale", 34))
    overview_with(served, 5)
    text = served.ask("/metrics").body.decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    told = {(one.name, one.labels.get("group") or one.labels.get("reason")): one.value for one in samples}
    assert told["leasehold_engine_job_missed_ticks_total", "missed"] == 2
    assert told["leasehold_engine_job_behind", "silent"] > 1
    assert told["leasehold_engine_refused_writes_total", "stale"] == 1


def test_names_are_shown_where_books_cannot_be_read(serve: ServeIt) -> None:
    with running_postgres() as postgres, Leasehold(postgres.url) as locks, locks.lock("name", ttl=600):
        served = serve(on=postgres.url)
        overview = wait_for(lambda: (o := served.ask("/api/overview").data)["totals"]["names"] and o, "it is seen")
        assert (overview["up"], overview["books_problem"], overview["job_totals"]["jobs"]) == (True, None, 0)
        assert postgres.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE '%key'") == [(0,)]  # only looked
        connection = postgres.superuser()
        with connection:
            connection.execute("CREATE TABLE leasehold_key (id int)")  # not what it should be
        overview = wait_for(lambda: (o := served.ask("/api/overview").data)["books_problem"] and o, "it is told")
        check_form(overview, "Overview")
        assert (overview["up"], overview["totals"]["names"]) == (True, 1)


def test_a_person_sees_jobs_and_stale_writes(browser: Browser, served: Served, shelf: Shelf, locks: Leasehold) -> None:
    page = opened(browser, served)
    assert page.value("document.getElementById('jobs').hidden") is True
    assert "nobody tells" in page.text("#tiles")
    keep_some(shelf)
    with Journal(locks) as journal:
        journal(Refused("invoices", 33, "stale", 34))
    page.wait_for("document.querySelectorAll('#job-rows tr').length === 5", "the jobs are shown")
    names = "[...document.querySelectorAll('#job-rows tr')].map(row => row.dataset.name)"
    assert page.value(names) == ["silent", "fails", "missed", "fine", "works"]
    assert page.value("document.querySelectorAll('#job-rows .strip .failed').length") == 1
    told = page.text("#jobs-told")
    assert all(word in told for word in ("1 under way", "1 behind", "1 overran", "2 ticks missed")), told
    page.wait_for("document.getElementById('events').innerText.includes('invoices refused a stale write')", "the event")
    assert "token 33 after 34" in page.text("#events")
    assert page.text("[data-jump=jobs]") == "Jobs 5"
    page.resize(1280, 300)
    page.click("[data-jump=happened]")
    page.wait_for("document.getElementById('happened').getBoundingClientRect().top < innerHeight", "it is brought up")
    page.resize(1280, 800)
    page.click("#job-rows tr:nth-child(3)")
    page.wait_for("document.getElementById('d-body').innerText.includes('nobody asked in time')", "its details")
    assert "null" not in page.text("#d-body")
    assert page.value("document.getElementById('break').hidden") is True
    page.press("Escape")
    page.resize(360, 740, mobile=True)
    page.wait_for("innerWidth === 360", "it is narrow")
    assert page.value("document.documentElement.scrollWidth") == 360
    assert page.complaints == []


def test_hostile_jobs_and_resources_are_text(browser: Browser, served: Served, shelf: Shelf, locks: Leasehold) -> None:
    for name in HOSTILE:
        missed, failed = Missed(tick(60), tick(60), 1, name, 0.0), run(60, "failed", error=name)
        keep(shelf, name, Book(schedule=name, cursor=tick(9), runs=(failed,), missed=(missed,), missed_in_all=1))
    with Journal(locks) as journal:
        for name in HOSTILE:
            journal(Refused(name, 33, "stale", 34))
    page = opened(browser, served)
    page.wait_for(f"document.querySelectorAll('#job-rows tr').length === {len(HOSTILE)}", "the jobs are shown")
    page.wait_for(f"document.querySelectorAll('#events li').length === {len(HOSTILE)}", "the events are shown")
    for number in range(len(HOSTILE)):
        page.click(f"#job-rows tr:nth-child({number + 1})")
        page.wait_for("document.getElementById('d-body').innerText.includes('failed')", "its details")
        page.press("Escape")
        page.wait_for("!document.getElementById('details').open", "they are closed")
    assert page.value("document.title") == "Leasehold"
    assert page.value("document.querySelectorAll('main img, main script, dialog img, main b b').length") == 0
    assert page.value("document.documentElement.scrollWidth <= innerWidth") is True
    assert page.complaints == []
    assert TOKEN not in json.dumps(page.value("document.documentElement.outerHTML"))
