"""Measures what it costs to watch many names: `leasehold serve` as a process, with a page open, on a real engine.

    python tools/watch_cost.py                        # 10,000 names in a Redis server of its own
    python tools/watch_cost.py --engine sqlite --names 1000

Prints the rows of the table in docs/serve.md. Processor time is what the system charged the processes with, so that
other work on the machine changes it less than the time on the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import servers
from leasehold import Leasehold

STEADY = 20.0
"""Seconds for which each steady state is looked at."""
PATIENCE = 300.0


class Place(NamedTuple):
    """Where the leases are, and the process that keeps them."""

    url: str
    pid: int | None


@contextlib.contextmanager
def place(engine: str, folder: Path) -> Iterator[Place]:
    """An engine of our own."""
    if engine == "sqlite":
        yield Place(f"sqlite:///{folder}/leases.db", None)
        return
    program = servers.find(engine)
    assert program is not None, f"python tools/servers.py ensure {engine}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    with subprocess.Popen([program, *settings], stdout=subprocess.DEVNULL) as server:
        try:
            give_up_at = time.monotonic() + PATIENCE
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert time.monotonic() < give_up_at
                time.sleep(0.05)
            yield Place(f"redis://127.0.0.1:{port}/0", server.pid)
        finally:
            server.terminate()


@contextlib.contextmanager
def served(url: str) -> Iterator[tuple[int, int, str]]:
    """`leasehold serve` as people start it: its process, port and token."""
    command = [sys.executable, "-m", "leasehold", "serve", "--on", url, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield process.pid, told["port"], told["token"]
        finally:
            process.terminate()


def processor_time(pid: int | None) -> float:
    """Seconds that a process has used so far, all its threads together."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OpenPage:
    """A page that is open: it reads the news of each round."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self._connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {token}"})
        self._answer = self._connection.getresponse()

    def news(self) -> tuple[int, Any]:
        """The next news: how many bytes they have, and what they say."""
        while not (line := self._answer.readline()).startswith(b"data: "):
            assert line, "the server has closed the connection"
        return len(line), json.loads(line[6:])

    def close(self) -> None:
        """Close the page."""
        self._answer.close()
        self._connection.close()


def measure(engine: str, names: int) -> Iterator[tuple[str, str]]:
    """One row of the table after the other."""
    with tempfile.TemporaryDirectory() as folder, place(engine, Path(folder)) as (url, engine_pid):
        with Leasehold(url, label="worker") as locks:
            held = [locks.lock(f"account/{number:05}", ttl=3600, renew=False).acquire() for number in range(names)]
        assert len(held) == names
        idle = processor_time(engine_pid)
        with served(url) as (pid, port, token):
            page = OpenPage(port, token)
            began = time.monotonic()
            size, news = page.news()
            while not (news["overview"]["complete"] and news["overview"]["totals"]["names"] >= names):
                size, news = page.news()
            took = time.monotonic() - began
            yield "until each name had been looked at", f"{took:.0f} s"
            yield "processor time of `leasehold serve` until then", f"{processor_time(pid):.1f} s"
            if engine_pid is not None:
                yield "processor time of the engine until then", f"{processor_time(engine_pid) - idle:.1f} s"
            yield "news of a round for one page of 100 names", f"{size / 1000:.0f} kB"
            yield from steady("with a page open", pid, engine_pid, page)
            page.close()
            yield from steady("with no page open", pid, engine_pid, None)


def steady(state: str, pid: int, engine_pid: int | None, page: OpenPage | None) -> Iterator[tuple[str, str]]:
    """What goes on once everything was seen."""
    before, began = (processor_time(pid), processor_time(engine_pid)), time.monotonic()
    while (left := began + STEADY - time.monotonic()) > 0:
        if page is not None:
            page.news()
        else:
            time.sleep(left)
    took = time.monotonic() - began
    yield f"`leasehold serve` {state}", f"{(processor_time(pid) - before[0]) / took:.1%} of one core"
    if engine_pid is not None:
        yield f"the engine {state}", f"{(processor_time(engine_pid) - before[1]) / took:.1%} of one core"


def main() -> None:
    """Measure, and print the rows."""
    parser = argparse.ArgumentParser(description="Measure what it costs to watch many names.")
    parser.add_argument("--engine", choices=("redis", "valkey", "sqlite"), default="redis")
    parser.add_argument("--names", type=int, default=10_000)
    options = parser.parse_args()
    print(f"| {options.names:,} names, {options.engine} | |\n|---|---|")
    for what, value in measure(options.engine, options.names):
        print(f"| {what} | {value} |", flush=True)


if __name__ == "__main__":
    main()
