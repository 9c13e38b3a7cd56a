"""Make the table of peers: ``python -m leasehold.chaos.peers``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from leasehold.chaos.peers.table import FAULTS, Terms, put_into, rows, text_of


def main(arguments: list[str] | None = None) -> int:
    """Run everything, and write the table to a page or to the terminal."""
    parser = argparse.ArgumentParser(description="Put Leasehold and its peers to the same faults, and show what came.")
    parser.add_argument("--engine", default="redis")
    parser.add_argument("--faults", default=",".join(FAULTS), help="names with commas between them; none is one")
    parser.add_argument("--seeds", default="1", help="numbers with commas between them")
    parser.add_argument("--for", dest="seconds", type=float, default=15.0, help="seconds of faults in each run")
    parser.add_argument("--into", type=Path, help="the page whose table is replaced")
    given = parser.parse_args(arguments)
    terms = Terms(
        engine=given.engine,
        faults=tuple(given.faults.split(",")),
        seeds=tuple(map(int, given.seeds.split(","))),
        seconds=given.seconds,
    )

    def tell(news: str) -> None:
        sys.stderr.write(f"{news}\n")

    text = text_of(terms, list(rows(terms, tell)))
    if given.into:
        put_into(given.into, terms.engine, text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
