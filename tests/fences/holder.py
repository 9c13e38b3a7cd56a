"""A holder in a process of its own: ``python -m tests.fences.holder KIND ADDRESS RESOURCE DEED TOKEN``."""

from __future__ import annotations

import os
import signal
import sys
import time

from tests.fences.guards import Guard
from tests.fences.registry import opened

from leasehold.errors import StaleToken

ROUNDS = 30


def stall(guard: Guard, token: int) -> None:
    """Find the lease good, freeze, and write when thawed."""
    valid_until = time.monotonic() + 60
    assert time.monotonic() < valid_until, "the lease has run out"
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        guard.write(token, "written by the stalled holder")
    except StaleToken as refused:
        print("stale", refused.token, refused.seen)
    else:
        print("written")


def crash(guard: Guard, token: int) -> None:
    """Die by SIGKILL after the check and before the write, or in the middle of it."""
    guard.write(token, "half done", between=lambda: os.kill(os.getpid(), signal.SIGKILL))


def count(guard: Guard, token: int) -> None:
    """Count up under a new lease each round, against another process that does the same with the tokens between."""
    accepted = 0
    for mine in range(token, token + 2 * ROUNDS, 2):
        try:
            value = int(guard.read(mine) or 0)
            guard.write(mine, str(value + 1))
            accepted += 1
        except StaleToken:
            pass
    print(accepted)


if __name__ == "__main__":
    kind, address, resource, deed, token = sys.argv[1:]
    guard = opened(kind, address, resource, patience=30)
    {"stall": stall, "crash": crash, "count": count}[deed](guard, int(token))
    guard.close()
