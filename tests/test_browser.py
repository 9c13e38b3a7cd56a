"""The browser of the tests itself: it sees what a person sees, and tells when a page is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.browser import Browser, BrowserError, browser

import servers

__all__ = ["browser"]

PAGE = """<!doctype html><meta name=viewport content="width=device-width">
<button onclick="n.textContent = +n.textContent + 1">count</button>
<p id=n>0</p><input><style>p { display: block } @media (max-width: 500px) { p { color: rgb(1, 2, 3) } }</style>"""


def test_a_person_clicks_and_types(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    page = browser.page()
    page.open(f"file://{tmp_path}/page.html")
    page.click("button")
    page.click("button")
    assert page.text("#n") == "2"
    page.click("input")
    page.type("né")
    page.press("a")
    assert page.value("document.querySelector('input').value") == "néa"
    page.resize(400, 800, mobile=True)
    assert page.value("getComputedStyle(n).color") == "rgb(1, 2, 3)"
    assert page.picture().startswith(b"\x89PNG")
    assert page.complaints == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>throw new Error('planted')</script>", "planted"),
        ("<script>console.error('planted')</script>", "planted"),
        ("<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><script>1</script>", "violates"),
        ("<img src=missing.png>", "missing.png"),
    ],
)
def test_what_is_broken_is_told(browser: Browser, tmp_path: Path, body: str, complaint: str) -> None:
    (tmp_path / "page.html").write_text(f"<!doctype html>{body}")
    page = browser.page()
    page.open(f"file://{tmp_path}/page.html")
    for _ in range(500):
        if page.complaints:
            break
        browser.listen(0.02)  # the log comes in its own time
    assert complaint in "\n".join(page.complaints)


def test_what_cannot_be_opened_fails(browser: Browser, tmp_path: Path) -> None:
    page = browser.page()
    with pytest.raises(BrowserError, match="ERR_FILE_NOT_FOUND"):
        page.open(f"file://{tmp_path}/nothing.html")
    with pytest.raises(BrowserError, match="ReferenceError"):
        page.value("nothing")


def test_a_missing_browser_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "find", lambda _engine: None)
    with pytest.raises(pytest.fail.Exception, match=r"servers\.py ensure chromium"):
        Browser(tmp_path)
