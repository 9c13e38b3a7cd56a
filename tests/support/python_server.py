"""A server that is a module of the tests, ``python -m MODULE PORT``: on a free port of the loopback, ended by id."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from leasehold.testing.ports import free_port

STARTS_WITHIN = 60.0
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def running_module(module: str, *, answers_at: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Its URL, for as long as the block; it serves as soon as the path `answers_at` answers with 200."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _process(module, port, environment or {}) as process:
        if not _serves(url + answers_at, process):
            pytest.fail(f"{module} did not start; run `python -m {module} 8080` to see why")
        yield url


@contextlib.contextmanager
def _process(module: str, port: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-W", "ignore", "-m", module, str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


def _serves(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it does, unless it ends before."""
    give_up_at = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < give_up_at:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5.0) as answer:
            if answer.status == 200 and process.poll() is None:
                return True
        time.sleep(0.05)
    return False
