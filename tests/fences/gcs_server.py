"""Google Cloud Storage as an emulator plays it, in a process of its own on a free port, ended by process id."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fences.local_server import free_port

import servers

STARTS_WITHIN = 60.0
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def running_gcs() -> Iterator[str]:
    """Its URL, for as long as the block; `LEASEHOLD_TEST_GCS_URL` names another server that has the tests' bucket."""
    given = servers.given_url("gcs")
    if given:
        yield given
        return
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", "tests.fences.gcs_app", str(port)], cwd=ROOT)
    try:
        give_up_at = time.monotonic() + STARTS_WITHIN
        while not _serves(url):
            if process.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail("the emulator of Google Cloud Storage did not start")
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait(20)


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/storage/v1/b", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
