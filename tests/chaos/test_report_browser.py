"""The page in a real browser: it draws, it zooms, it leads to what is wrong, and names cannot do anything in it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.chaos.histories import RUN_INFO, right
from tests.chaos.test_checkers import _overlap
from tests.chaos.test_report import EVIL, evil
from tests.support.browser import Browser, Page, browser

from leasehold.chaos import report
from leasehold.chaos.checkers import judge
from leasehold.chaos.history import Event
from leasehold.chaos.run_info import RunInfo

__all__ = ["browser"]

DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
SPAN = "[+chart.dataset.from, +chart.dataset.to]"


def opened(browser: Browser, folder: Path, history: list[Event], run: RunInfo = RUN_INFO) -> Page:
    """The report of a history, drawn."""
    paths = report.write(folder, history, run, judge(history, run))
    page = browser.page()
    page.open(paths.html.as_uri())
    page.wait_for("chart.dataset.to", "the time line is drawn")
    return page


def span(page: Page) -> float:
    """How many milliseconds the time line shows."""
    since, until = page.value(SPAN)
    return float(until - since)


def red_at(page: Page, violation: int) -> bool:
    """Whether the time line is red where a violation is marked."""
    script = f"""(() => {{
        const one = JSON.parse(data.textContent).violations[{violation}], [from, to] = {SPAN};
        const wide = lanes.clientWidth, ratio = lanes.width / wide;
        const x = 96 + (one.at - from) / (to - from) * (wide - 96);
        const [r, g, b] = lanes.getContext("2d").getImageData(Math.round(x * ratio), Math.round(16 * ratio), 1, 1).data;
        return r > 150 && r > 2 * g && r > 2 * b; }})()"""
    return bool(page.value(script))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_violation_is_seen_at_once_and_leads_to_its_events(browser: Browser, tmp_path: Path, scheme: str) -> None:
    page = opened(browser, tmp_path, _overlap(right(5), random.Random(5)))
    page.prefer(scheme)
    page.wait_for(f"matchMedia('(prefers-color-scheme: {scheme})').matches", "the colours are there")
    page.wait_for(DRAWN, "drawn")
    assert red_at(page, 0)
    whole = span(page)
    page.click(".jump")
    page.wait_for("chart.dataset.chosen === '0'", "the violation is chosen")
    page.wait_for(f"(({SPAN})[1] - ({SPAN})[0]) < {whole / 2}", "the time line shows it from near")
    assert red_at(page, 0)
    assert "exclusive: violated" in page.text("#detail")
    assert page.value("detail.querySelectorAll('tr').length") >= 4
    assert page.complaints == []


def test_zooming_and_moving(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, right(5))
    whole = span(page)
    page.click("#in")
    page.wait_for(f"({SPAN})[1] - ({SPAN})[0] < {whole * 0.6}", "the button zooms")
    page.value("chart.focus()")
    before = page.value(SPAN)
    page.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    page.wait_for(f"({SPAN})[0] > {before[0]}", "an arrow moves")
    x, y = page.value("(() => { const r = lanes.getBoundingClientRect(); return [r.x + r.width / 2, r.y + 80] })()")
    near = span(page)
    page.ask("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-300)
    page.wait_for(f"({SPAN})[1] - ({SPAN})[0] < {near}", "the wheel zooms")
    at = page.value(SPAN)
    page.ask("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x + 120, y=y, button="left", buttons=1)
    page.ask("Input.dispatchMouseEvent", type="mouseReleased", x=x + 120, y=y, button="left", clickCount=1)
    page.wait_for(f"({SPAN})[0] < {at[0]}", "dragging to the right shows what came before")
    page.click("#all")
    page.wait_for(f"({SPAN})[1] - ({SPAN})[0] === {whole}", "everything is shown again")
    assert page.value("document.getElementById('next').disabled")
    assert page.complaints == []


def test_tokens_that_begin_alike_are_told_apart(browser: Browser, tmp_path: Path) -> None:
    """Where there is no room for all its digits, a lease shows the last ones."""
    history = [replace(one, token=one.token + 1_794_962_697_000_000) if one.token else one for one in right(5)]
    page = opened(browser, tmp_path, history)
    page.value("""(() => {
        window.drawn = [];
        const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
            drawn.push(text);
            return write.call(this, text, ...at);
        }; })()""")
    for _ in range(12):
        page.click("#in")
        page.wait_for(DRAWN, "drawn")
    tokens = [str(one.token) for one in history if one.kind == "granted"]
    cut = [one for one in page.value("drawn") if one.startswith("…")]
    assert cut
    assert all(any(token.endswith(one[1:]) for token in tokens) for one in cut)


def test_names_are_only_names(browser: Browser, tmp_path: Path) -> None:
    run = replace(RUN_INFO, command=EVIL, address=EVIL, workload=EVIL, left_out={EVIL: EVIL})
    page = opened(browser, tmp_path, evil(_overlap(right(5), random.Random(5))), run)
    page.click(".jump")
    page.wait_for("chart.dataset.chosen === '0'", "the violation is chosen")
    assert EVIL in page.text("#detail")
    assert page.text("#command") == EVIL
    assert page.value("typeof window.hacked") == "undefined"
    assert page.value("document.images.length") == 0
    assert page.complaints == []


def test_the_pages_own_policy_stops_what_is_slipped_in(browser: Browser, tmp_path: Path) -> None:
    """The escaping above is not the only thing that keeps a name from acting."""
    paths = report.write(tmp_path, right(5), RUN_INFO, judge(right(5), RUN_INFO))
    text = paths.html.read_text(encoding="utf-8")
    paths.html.write_text(text.replace("<main>", "<main><script>window.hacked = 1</script>", 1), encoding="utf-8")
    page = browser.page()
    page.open(paths.html.as_uri())
    page.wait_for("chart.dataset.to", "the time line is drawn")
    assert page.value("typeof window.hacked") == "undefined"


def test_twenty_thousand_events_can_be_looked_at(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, _overlap(right(3, leases=650), random.Random(1)))
    page.click("#next")
    page.wait_for("chart.dataset.chosen", "a violation is chosen")
    names = page.value("JSON.parse(data.textContent).workers")
    assert json.dumps(sorted(names)) == json.dumps([f"w{group}-{number}" for group in (0, 1) for number in range(4)])
    assert page.complaints == []
    assert [url for _, url in page.answers if not url.endswith("/report.html")] == []  # nothing was asked of anybody
