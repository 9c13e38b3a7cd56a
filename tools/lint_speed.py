"""Measures the linter beside others on the same files, in turns: `python tools/lint_speed.py FOLDER [--rounds 5]`.

ruff is the one of this environment; name the program of an environment that has flake8 and flake8-bugbear with
``--flake8 PATH``. Caches are off. Each round runs every contestant once, so that a busy moment hits all alike.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from leasehold.lint.config import Config
from leasehold.lint.files import find


def lines_in(folder: str) -> int:
    """How many lines the contestants read."""
    found, _ = find([folder], (), Config().root)
    return sum(Path(path).read_bytes().count(b"\n") for path in found)


def main() -> int:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flake8")
    options = parser.parse_args()
    home = Path(sys.executable).parent
    contestants = {
        "leasehold lint": [str(home / "leasehold"), "lint", "--tests", options.folder],
        "ruff check --select B": [
            str(home / "ruff"),
            "check",
            "--isolated",
            "--no-cache",
            "--select",
            "B",
            options.folder,
        ],
    }
    if options.flake8:
        contestants["flake8 with bugbear"] = [options.flake8, "--isolated", "--select", "B", options.folder]
    lines = lines_in(options.folder)
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name, command in contestants.items():
            start = time.monotonic()
            code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
            took[name].append(time.monotonic() - start)
            if code not in (0, 1, 2):
                raise SystemExit(f"{name} ended with {code}")
    print(f"{lines} lines, {options.rounds} rounds in turns; seconds for 100,000 lines: median (least to most)")
    for name, times in took.items():
        each = sorted(one / lines * 100_000 for one in times)
        print(f"  {name:<24} {statistics.median(each):6.2f} ({each[0]:.2f} to {each[-1]:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
