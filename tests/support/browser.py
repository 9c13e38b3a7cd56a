"""A real browser for the tests of pages: headless Chromium, driven through a pipe.

    with Browser(folder) as browser:
        page = browser.page()
        page.open(url)
        page.wait_for("document.querySelector('h1')", "the page has a heading")
        page.click("button")
        assert page.complaints == []

It speaks the DevTools protocol as JSON that ends with NUL, over two inherited descriptors: no port that others could
reach, no driver, no library. `tools/servers.py ensure chromium` gets the program; a missing one fails the test.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from tests.support.programs import program_of

PATIENCE = 60.0
"""How long a crowded machine may need for one step; nothing waits longer than it takes."""
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
)
_KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "ArrowDown": ("", 40), "ArrowUp": ("", 38), "Tab": ("\t", 9)}


class BrowserError(Exception):
    """The browser refused a command, a script in the page raised, or the browser is gone."""


class Browser:
    """One browser process with a profile of its own in `folder`; ended by its process id."""

    def __init__(self, folder: Path) -> None:
        program = program_of("chromium")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to sandbox itself for root
        arguments = [str(program), *_FLAGS, *sandbox, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        theirs_in, self._to = _pipe()
        self._from, theirs_out = _pipe()
        log = os.open(folder / "browser.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log = folder / "browser.log"
        self.pid = os.posix_spawn(
            str(program),
            arguments,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
            setsid=True,
        )
        for descriptor in (theirs_in, theirs_out, log):
            os.close(descriptor)
        self._unread, self._number = b"", 0
        self._pages: dict[str, Page] = {}

    def page(self, *, width: int = 1280, height: int = 800) -> Page:
        """A new tab, in a context of its own: it shares no cookie with others."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.resize(width, height)
        return page

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Carry out one command of the DevTools protocol, and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(until, method)
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def listen(self, seconds: float) -> None:
        """Take in what the pages tell for a while."""
        with contextlib.suppress(TimeoutError):
            self._receive(time.monotonic() + seconds, "events")

    def _receive(self, until: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser said nothing on {what}")
            read = os.read(self._from, 1 << 20)
            if not read:
                raise BrowserError(f"the browser is gone: {self._log.read_text(errors='replace')[-2000:]}")
            self._unread += read
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.hear(message["method"], message["params"])
        return message

    def end(self) -> None:
        """End it, kindly first."""
        with contextlib.suppress(BrowserError, TimeoutError, BrokenPipeError):
            self.ask("Browser.close")
        until = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            time.sleep(0.02)
        os.close(self._to)
        os.close(self._from)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _pipe() -> tuple[int, int]:
    """A pipe with descriptors that do not get into the way of the browser's 3 and 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


class Page:
    """A tab: what a person does in it, and what it complained about."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        """Errors of scripts, of the console, and what the page's own policy (CSP) blocked."""
        self.answers: list[tuple[int, str]] = []
        """Status and URL of each answer that it got over the network."""
        self._loaded = False

    def ask(self, method: str, **parameters: Any) -> Any:
        """Carry out one command of the DevTools protocol in this tab."""
        return self._browser.ask(method, self._session, **parameters)

    def hear(self, method: str, told: dict[str, Any]) -> None:
        """Take in an event of this tab."""
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(_described(told["exceptionDetails"]))
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "assert"):
                self.complaints.append(" ".join(str(one.get("value")) for one in told["args"]))
            case "Network.responseReceived":
                self.answers.append((told["response"]["status"], told["response"]["url"]))
            case "Page.loadEventFired":
                self._loaded = True
            case _:
                return  # of no interest here

    def open(self, url: str) -> None:
        """Go to a page, and wait until it has loaded."""
        self._loaded = False
        failure = self.ask("Page.navigate", url=url).get("errorText")
        if failure:
            raise BrowserError(f"{url}: {failure}")
        until = time.monotonic() + PATIENCE
        while not self._loaded:
            assert time.monotonic() < until, f"{url} did not load within {PATIENCE:g} s"
            self._browser.listen(0.1)

    def value(self, script: str) -> Any:
        """What an expression (or a promise) gives in the page, as JSON."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{script}: {_described(result['exceptionDetails'])}")
        return result["result"].get("value")

    def wait_for(self, script: str, what: str) -> Any:
        """Wait until an expression is true in the page, and return what it gives."""
        until = time.monotonic() + PATIENCE
        while not (value := self.value(f"(() => {{ const v = {script}; return v instanceof Node ? true : v }})()")):
            assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}\n{self.text()[:2000]}"
            time.sleep(0.03)
        return value

    def text(self, selector: str = "body") -> str:
        """The text that a person sees there."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Click on the middle of an element with the mouse, as a person does."""
        self.wait_for(
            f"document.querySelector({json.dumps(selector)})?.getClientRects().length", f"one sees {selector}"
        )
        script = f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const r = e.getBoundingClientRect();
            return [r.x + r.width / 2, r.y + r.height / 2] }})()"""
        x, y = self.value(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type text into what has the focus."""
        self.ask("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press and let go of a key, such as ``Enter`` or ``/``."""
        text, code = _KEYS.get(key, (key, ord(key[0].upper())))
        down = {"text": text} if text else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **down)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the page another size; a `mobile` one is a phone's, with a touch screen."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def prefer(self, scheme: str) -> None:
        """Have the person prefer ``dark`` or ``light``."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self) -> bytes:
        """What it looks like, as a PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])


def _described(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the tests of a module: import it there. Each test takes a `page()` of its own."""
    with Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one
