"""A worker for the tests of faults: takes a lock over and over, and says in small files what it is at.

    python toy_worker.py URL TTL FOLDER NAME

`NAME.doing` holds what it is at; `NAME.log` gets a line for each turn with the token and its wall clock.
It goes on holding for as long as there is a file `NAME.hold-on`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from leasehold import Leasehold, LeaseholdError


def main() -> None:
    url, ttl, folder, name = sys.argv[1:]
    doing = (Path(folder) / f"{name}.doing").open("w", buffering=1)
    log = (Path(folder) / f"{name}.log").open("a", buffering=1)

    hold_on = Path(folder) / f"{name}.hold-on"

    def at(what: str) -> None:
        doing.seek(0)
        doing.write(f"{what:<6}\n")
        doing.flush()

    locks = Leasehold(url, label=name, request_timeout=1.0)
    while True:
        at("waits")
        with contextlib.suppress(LeaseholdError), locks.lock("orders", ttl=float(ttl), wait=1.0) as lease:
            at("holds")
            time.sleep(0.02)
            while hold_on.exists():
                at("clings")
                time.sleep(0.005)
            if not lease.lost:
                at("gap")
                time.sleep(0.01)
            log.write(f"{lease.token} {time.time()}\n")
        at("idle")
        time.sleep(0.005)


main()
