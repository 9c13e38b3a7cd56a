"""How long `import leasehold` takes, beside `import redis`, each time in a fresh interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from leasehold.bench.effort import Run
from leasehold.bench.figures import in_turn, spread
from leasehold.bench.results import Aim, Figure, Finding, Row, Table

MILLISECONDS, SHARE, LIBRARIES = "ms (p10-p90)", "share of `import redis`", "libraries imported"
HEAVY_LIBRARIES = ("redis", "hiredis", "sqlite3", "asyncio", "click", "rich")
"""Clients of engines, and what is only for some programs: none may come with `import leasehold`."""
AIM = 0.2

PROGRAM = """
import sys, time
began = time.perf_counter()
import {module}
took = time.perf_counter() - began
import json
print(json.dumps([took, sorted(set(sys.modules))]))
"""


def imported(module: str, cache: Path) -> tuple[float, list[str]]:
    """Import a module in a fresh interpreter: how many seconds it took, and which modules are there afterwards.

    All modules find their compiled form in `cache`, from the second time on: what is installed has one, and what is
    being worked on may not.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        env=environment | {"PYTHONPYCACHEPREFIX": str(cache)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    took, modules = json.loads(done.stdout)
    return float(took), modules


def measure(run: Run) -> Finding:
    """Alternate, so that noise hits all alike; the first of each only compiles."""
    modules = ["leasehold", *(["redis"] if importlib.util.find_spec("redis") else [])]
    took: dict[str, list[float]] = {module: [] for module in modules}
    loaded: dict[str, list[str]] = {}
    steps = len(modules) * (run.effort.imports + 1)
    with tempfile.TemporaryDirectory() as cache, run.steps.of("importing", steps) as advance:
        for number, module in in_turn(modules, run.effort.imports + 1):
            seconds, loaded[module] = imported(module, Path(cache))
            if number:
                took[module].append(seconds)
            advance()
    foreign = [name for name in HEAVY_LIBRARIES if name in loaded["leasehold"]]
    rows = []
    for module in modules:
        figures = {MILLISECONDS: Figure.of(spread([seconds * 1e3 for seconds in took[module]]), "ms")}
        if module == "leasehold":
            figures[LIBRARIES] = Figure(len(foreign), "")
            if "redis" in took:
                shares = [mine / its for mine, its in zip(took["leasehold"], took["redis"], strict=True)]
                figures[SHARE] = Figure.of(spread(shares), "times")
        rows.append(Row(f"import {module}", figures))
    aims = [Aim("libraries that `import leasehold` imports", "at most", 0, rows[0].figures[LIBRARIES])]
    if SHARE in rows[0].figures:
        aims.append(Aim("`import leasehold`, to `import redis`", "at most", AIM, rows[0].figures[SHARE]))
    notes = [f"Looked for: {', '.join(HEAVY_LIBRARIES)}. Imported: {', '.join(foreign) or 'none of them'}."]
    return Finding([Table("imports", "Importing", [MILLISECONDS, SHARE, LIBRARIES], rows, notes)], aims)
