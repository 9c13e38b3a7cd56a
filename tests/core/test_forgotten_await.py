"""A forgotten `await` is found by the type checker, before anything runs; the same lines with it are fine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
from leasehold import AsyncLeasehold, Leasehold


async def wrong(locks: AsyncLeasehold) -> None:
    lock = locks.lock("a")
    lock.acquire()  # wrong
    lease = lock.acquire()
    print(lease.token)  # wrong
    with lock:  # wrong
        pass
    if lock.try_acquire():  # wrong
        pass
    async with lock as held:
        held.release()  # wrong
        held.extend()  # wrong


async def right(locks: AsyncLeasehold) -> None:
    lock = locks.lock("a")
    lease = await lock.acquire()
    print(lease.token)
    async with lock as held:
        await held.extend()
        await held.release()


def blocking(locks: Leasehold) -> None:
    with locks.lock("a") as held:
        held.extend()
        held.release()
"""


def test_each_forgotten_await_is_an_error_and_nothing_else_is(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(file)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", said)}
    assert found == {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in line}, said
