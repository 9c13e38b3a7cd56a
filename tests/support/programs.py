"""The programs of the servers that tests start themselves, to stop, freeze and restart them as they like."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import servers


def program_of(engine: str) -> Path:
    """Where the engine's program is.

    Without it the test fails. Where a running server was named instead, the test is skipped: it needs one of its own.
    """
    program = servers.find(engine)
    if program is not None:
        return program
    if servers.given_url(engine):
        pytest.skip(f"${servers.url_variable(engine)} names a server that runs, and this test needs one of its own")
    pytest.fail(f"no {engine} here; python tools/servers.py ensure {engine}")


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes of a server stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
