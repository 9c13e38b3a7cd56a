"""S3 and DynamoDB as moto plays them, in a process of its own on a free port of the loopback, ended by process id.

It is no AWS, but it keeps and refuses for real: conditional puts, ETags, condition expressions, transactions. It looks
at a condition and carries out the write in two steps, where the services have one; so `moto_app` lets requests in one
after another.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.etcd_server import free_port

STARTS_WITHIN = 60.0
ROOT = Path(__file__).parents[2]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def running_moto() -> Iterator[str]:
    """Its URL, for as long as the block."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.moto_app", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, **CREDENTIALS})
    try:
        give_up_at = time.monotonic() + STARTS_WITHIN
        while not _serves(url):
            if process.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail("moto's server did not start")
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait(20)


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
