"""Make the tables of peers: ``python -m leasehold.chaos.peers``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from leasehold.chaos.peers import PEERS, data
from leasehold.chaos.peers.table import FAULTS, Terms, put_into, runs, text_of

ENGINES = tuple(dict.fromkeys(kind.engines[0] for kind in PEERS.values()))
"""One for each kind of server that a peer speaks to."""


def main(arguments: list[str] | None = None) -> int:
    """Run everything, keep what came in a file, and make the tables of a page from the file."""
    given = _parser().parse_args(arguments)
    for engine in () if given.render else given.engines.split(","):
        terms = Terms(
            engine=engine,
            faults=tuple(given.faults.split(",")),
            seeds=tuple(map(int, given.seeds.split(","))),
            seconds=given.seconds,
        )
        for one in runs(terms, _tell):
            data.add(given.data, [one])  # at once: what follows may be interrupted
    kept = data.read(given.data)
    for engine in ENGINES:
        if made := [one for one in kept if one.engine == engine]:
            text = text_of(made, Terms(engine=engine))
            if given.into:
                put_into(given.into, engine, text)
            else:
                sys.stdout.write(f"{engine}: {text}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Put Leasehold and its peers to the same faults, and show what came.")
    parser.add_argument("--engines", default=",".join(ENGINES), help="names with commas between them")
    parser.add_argument("--faults", default=",".join(FAULTS), help="names with commas between them; none is one")
    parser.add_argument("--seeds", default="1", help="numbers with commas between them")
    parser.add_argument("--for", dest="seconds", type=float, default=15.0, help="seconds of faults in each run")
    parser.add_argument("--data", type=Path, default=Path("peers.json"), help="the file that runs are added to")
    parser.add_argument("--render", action="store_true", help="run nothing; only show what the file holds")
    parser.add_argument("--into", type=Path, help="the page whose tables are replaced")
    return parser


def _tell(news: str) -> None:
    sys.stderr.write(f"{news}\n")


if __name__ == "__main__":
    sys.exit(main())
