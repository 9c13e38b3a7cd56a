"""The page in a real browser: what a person sees, does, and is protected from."""

from __future__ import annotations

import json
import threading
import time
from importlib.resources import files
from pathlib import Path

from tests.serve.conftest import TOKEN, Served, ServeIt, wait_for
from tests.support.browser import Browser, Page, browser

from leasehold import Leasehold
from leasehold.serve.api import PAGE

__all__ = ["browser"]

NAMES = "[...document.querySelectorAll('td.name')].map(cell => cell.textContent)"
HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "javascript:document.title='owned'",
    "{{constructor.constructor('document.title=`owned`')()}}",
    "x" * 255,
)


def opened(browser: Browser, served: Served, **size: int) -> Page:
    page = browser.page(**size)
    page.open(f"{served.url}#{TOKEN}")
    page.wait_for("document.querySelector('#tiles div') && !document.getElementById('board').hidden", "it is shown")
    return page


def shows(page: Page, *names: str) -> None:
    wanted = json.dumps(list(names), separators=(",", ":"), ensure_ascii=False)
    page.wait_for(f"JSON.stringify({NAMES}) === {json.dumps(wanted)}", f"it shows {names}")


def tile(page: Page, name: str) -> str:
    script = f"[...document.querySelectorAll('#tiles div')].find(t => t.innerText.startsWith('{name}'))"
    return str(page.value(f"{script}.querySelector('dd').textContent"))


def test_it_is_small_and_whole() -> None:
    sizes = {name: len(files("leasehold.serve").joinpath("page", name).read_bytes()) for name in PAGE.values()}
    assert sum(sizes.values()) < 60_000, sizes
    markup = files("leasehold.serve").joinpath("page", "index.html").read_text()
    assert "http:" not in markup.replace("http://www.w3.org", "")
    assert "https:" not in markup


def test_a_person_comes_in_and_the_token_leaves_the_address(browser: Browser, served: Served) -> None:
    page = opened(browser, served)
    assert page.value("location.href") == served.url
    assert "Nothing is held and nobody waits" in page.text("#nothing")
    assert page.value("document.cookie") == ""  # scripts cannot read it
    stored = "JSON.stringify([localStorage.length, sessionStorage.length])"
    assert page.value(stored) == "[0,0]"
    assert TOKEN not in page.value("document.documentElement.outerHTML")
    page.open(served.url)  # a reload needs no token
    page.wait_for("document.querySelector('#tiles div')", "it is shown again")
    assert page.complaints == []
    assert {url for _, url in page.answers if not url.startswith(served.url)} == set()


def test_without_the_token_the_page_asks_for_it(browser: Browser, served: Served) -> None:
    page = browser.page()
    page.open(served.url)
    page.wait_for("!document.getElementById('gate').hidden", "it asks")
    page.click("#token")
    page.type("wrong")
    page.press("Enter")
    page.wait_for("document.getElementById('refused').textContent.includes('not the token')", "it is refused")
    page.value("document.getElementById('token').value = ''")
    page.type(TOKEN)
    page.press("Enter")
    page.wait_for("document.querySelector('#tiles div')", "it is shown")


def test_news_are_shown_as_they_come(browser: Browser, served: Served, locks: Leasehold, tmp_path: Path) -> None:
    page = opened(browser, served)
    lease = locks.lock("nightly-export", ttl=600).acquire()
    shows(page, "nightly-export")
    assert page.text("#rows td.holder").startswith("holder@")

    def wait() -> None:
        with Leasehold(tmp_path / "leases.db", label="waiter") as other, other.lock("nightly-export", wait=60):
            pass

    waiter = threading.Thread(target=wait)
    waiter.start()
    page.wait_for("document.querySelector('tr.waited .pill')?.textContent === '1'", "the waiter is shown")
    page.wait_for("document.title.startsWith('(1)')", "the title tells")
    assert tile(page, "Waiters") == "1"
    page.click("tbody tr")
    page.wait_for("document.getElementById('d-body').innerText.includes('1. waiter@')", "the queue is shown")
    assert page.value("document.getElementById('break').hidden") is True  # not allowed here
    page.press("Escape")
    lease.release()
    waiter.join(60)
    page.wait_for("document.querySelectorAll('tbody tr').length === 0", "it is gone")
    assert page.complaints == []


def test_keys_find_and_open_names(browser: Browser, served: Served, locks: Leasehold) -> None:
    leases = [locks.lock(f"name-{number:03}", ttl=600).acquire() for number in range(130)]
    page = opened(browser, served)
    page.wait_for("document.querySelectorAll('tbody tr').length === 100", "a page is full")
    page.click("#on")
    page.wait_for("document.getElementById('place').textContent.endsWith('130 of 130')", "the second page")
    page.press("/")
    page.type("NAME-01")
    shows(page, *(f"name-01{digit}" for digit in range(10)))
    page.press("ArrowDown")
    page.press("ArrowDown")
    page.press("Enter")
    page.wait_for("document.getElementById('d-name').textContent === 'name-011'", "its details")
    page.press("Escape")
    page.wait_for("!document.getElementById('details').open", "they are closed")
    page.click("[data-only=waited]")
    page.wait_for("document.getElementById('nothing').textContent === 'No name matches.'", "nobody waits")
    assert page.complaints == []
    for lease in leases:
        lease.release()


def open_details(page: Page, row: str) -> None:
    """Rows move while the page is live, so that a click may miss: click until one has hit."""
    until, again_at = time.monotonic() + 60, 0.0
    while not page.value("document.querySelector('dialog[open]') !== null"):
        assert time.monotonic() < until, f"no dialog opens for {row}"
        if time.monotonic() >= again_at:
            page.click(row)
            again_at = time.monotonic() + 0.3
        time.sleep(0.02)


def test_hostile_names_are_text(browser: Browser, served: Served, locks: Leasehold) -> None:
    leases = [locks.lock(name, ttl=600).acquire() for name in HOSTILE]
    page = opened(browser, served)
    shows(page, *sorted(HOSTILE))
    for number in range(len(HOSTILE)):
        open_details(page, f"tbody tr:nth-child({number + 1})")
        page.wait_for("document.getElementById('d-body').innerText.includes('holder@')", "its details")
        page.press("Escape")
        page.wait_for("document.querySelector('dialog[open]') === null", "the dialog is closed")
    assert page.value("document.title") == "Leasehold"
    assert page.value("document.querySelectorAll('td img, td script, dialog img').length") == 0
    assert page.value("document.documentElement.scrollWidth <= innerWidth") is True
    assert page.complaints == []
    for lease in leases:
        lease.release()


def test_the_policy_holds_even_against_the_page_itself(browser: Browser, served: Served) -> None:
    """Were there a way to get markup or scripts into the page, the browser would stop it."""
    page = opened(browser, served)
    tried = "(() => {{ try {{ {} }} catch (error) {{ return error.name }} }})()"
    assert page.value(tried.format("document.body.innerHTML = '<b>x</b>'")) == "TypeError"
    handler = """const b = document.createElement('b'); document.body.append(b);
        b.setAttribute('onclick', "document.title='owned'"); b.click()"""
    page.value(tried.format(handler))  # refused at once, or blocked when it is clicked
    blocked = "fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'blocked')"
    assert page.value(blocked) == "blocked"
    wait_for(lambda: page.value("1") and len(page.complaints) >= 2, "the browser tells what it stopped")
    assert page.value("document.title") == "Leasehold"


def test_a_name_is_released_by_force(browser: Browser, serve: ServeIt, locks: Leasehold) -> None:
    served = serve(can_break=True)
    lease = locks.lock("stuck", ttl=600).acquire()
    page = opened(browser, served)
    shows(page, "stuck")
    open_details(page, "tbody tr")
    page.wait_for("!document.getElementById('break').hidden", "it can be released")
    page.value("document.getElementById('because').focus()")
    page.press("Enter")  # nothing happens without a reason
    status = locks.status("stuck")
    assert status is not None
    assert status.holders
    page.type("its host is gone")
    page.press("Enter")
    told = page.wait_for("document.getElementById('d-told').textContent", "it is told")
    assert told.startswith("Released. Announce token ")
    assert int(told.split()[3]) > lease.token
    page.press("Escape")
    page.wait_for("document.getElementById('events').innerText.includes('stuck was released by force')", "the event")
    shows(page)
    assert page.complaints == []


def test_it_fits_a_phone_and_the_dark(browser: Browser, served: Served, locks: Leasehold) -> None:
    leases = [locks.lock(name, ttl=600).acquire() for name in ("a", "b" * 200)]
    page = opened(browser, served)
    shows(page, "a", "b" * 200)
    light = page.value("getComputedStyle(document.body).backgroundColor")
    page.prefer("dark")
    assert page.value("getComputedStyle(document.body).backgroundColor") != light
    page.resize(360, 740, mobile=True)
    page.wait_for("innerWidth === 360", "it is narrow")
    assert page.value("document.documentElement.scrollWidth") == 360
    controls = "[...document.querySelectorAll('button, input, select, tbody tr')].filter(e => e.offsetParent)"
    assert min(page.value(f"{controls}.map(e => e.offsetHeight)")) >= 30  # a thumb can hit it
    for lease in leases:
        lease.release()


def test_an_engine_that_went_is_told(browser: Browser, serve: ServeIt) -> None:
    served = serve(on="redis://:hunter22-secret@127.0.0.1:1/0")
    page = opened(browser, served)
    page.wait_for("document.getElementById('problem').textContent.length > 10", "the problem is told")
    assert "hunter22" not in page.value("document.documentElement.outerHTML")


def test_a_server_that_was_started_anew_asks_again(browser: Browser, served: Served) -> None:
    page = opened(browser, served)
    served.server.api.door._sessions.clear()
    page.value("source.close(); listen()")
    page.wait_for("document.getElementById('refused').textContent.includes('session has ended')", "it asks")
