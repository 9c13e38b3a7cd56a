"""How fast each engine hands a name to the next process: `python tools/handoff.py` (`--write` for the docs).

Starts a server of each engine, all on this machine, and lets four processes want one name on each of them, in turns:
what disturbs the machine disturbs all. The time counts from just before one process lets go to just after another one
holds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from leasehold.bench.contended import BODY, Lane
from leasehold.bench.contestants import LEASEHOLD
from leasehold.bench.crew import Crew
from leasehold.bench.figures import in_turn, quantile
from leasehold.bench.places import Place, fresh_namespace
from leasehold.chaos.servers import started
from leasehold.chaos.servers.programs import FOLDER
from leasehold.engines.redlock import initialise

PAGE = Path(__file__).parents[1] / "docs" / "engines" / "hand-off.md"
REGION = re.compile(r"(<!-- hand-off -->\n).*?(<!-- end of hand-off -->)", re.DOTALL)
CREW, SECONDS, ROUNDS = 4, 2.0, 5
REDLOCK_SERVERS = 3


@contextlib.contextmanager
def engines(folder: Path) -> Iterator[dict[str, str]]:
    """The URL of each engine, by its name."""
    with contextlib.ExitStack() as stack:

        def url_of(engine: str, place: str) -> str:
            (folder / place).mkdir()
            return stack.enter_context(started(engine, folder / place))[0]

        redis, postgresql, mariadb = url_of("redis", "redis"), url_of("postgresql", "pg"), url_of("mariadb", "mariadb")
        several = [url_of("redis", f"redlock-{number}").partition("://")[2] for number in range(REDLOCK_SERVERS)]
        redlock = f"redlock://{','.join(several)}"
        initialise(redlock)
        yield {
            "SQLite": f"sqlite:///{folder / 'leases.db'}",
            "Redis": redis,
            f"Redlock, {REDLOCK_SERVERS} servers": redlock,
            "PostgreSQL": postgresql,
            "PostgreSQL, session locks": postgresql.replace("postgresql", "postgresql+session", 1),
            "MariaDB": mariadb,
            "MariaDB, session locks": re.sub(r"^\w+", "mariadb+session", mariadb),
            "etcd, one member": url_of("etcd", "etcd"),
            "ZooKeeper, one server": url_of("zookeeper", "zookeeper"),
            "Consul, one server": url_of("consul", "consul"),
        }


def measured(urls: dict[str, str], folder: Path) -> dict[str, list[float]]:
    """Hand-offs on each engine, in seconds."""
    with contextlib.ExitStack() as stack:
        lanes = []
        for number, url in enumerate(urls.values()):
            own = folder / f"crew-{number}"
            own.mkdir()
            place = Place(url.partition(":")[0], url, fresh_namespace(), own)
            crew = Crew(CREW, "contend", place, contestant=LEASEHOLD.key, name="handed-on")
            lanes.append(Lane(LEASEHOLD, stack.enter_context(crew)))
        for lane in lanes:
            lane.round(0.2, body=0.0)
        for number, lane in in_turn(lanes, ROUNDS):
            lane.work.append(lane.round(SECONDS, body=BODY))
            print(f"\rround {number + 1} of {ROUNDS} ", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return {
            name: [seconds for one in lane.work for seconds in one.hand_offs]
            for name, lane in zip(urls, lanes, strict=True)
        }


def table(hand_offs: dict[str, list[float]]) -> str:
    """As Markdown, the quickest first."""
    rows = sorted((quantile(times, 0.5), quantile(times, 0.99), len(times), name) for name, times in hand_offs.items())
    lines = ["| engine | p50 ms | p99 ms | hand-offs seen |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {mid * 1e3:.2f} | {slow * 1e3:.2f} | {seen:,} |" for mid, slow, seen, name in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and print or write the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    given = arguments.parse_args()
    os.environ.setdefault(FOLDER, str(PAGE.parents[2] / ".servers"))
    with tempfile.TemporaryDirectory(prefix="leasehold-handoff-") as name:
        folder = Path(name)
        with engines(folder) as urls:
            text = table(measured(urls, folder))
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(REGION.sub(lambda match: match[1] + text + match[2], page), encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
