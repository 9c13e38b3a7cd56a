"""Packages that are not installed: what lacks one says how to get it, and the rest goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cli.tool import Command, Result

WITHOUT = """
import runpy, sys
for name in ("hiredis", "psycopg", "grpc", "redis"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def without_extras(leasehold: Command, *arguments: str) -> Result:
    """Call a module as if nothing but Leasehold were installed."""
    command = [sys.executable, "-c", WITHOUT, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=leasehold.folder,
        env={**leasehold.environment, "COLUMNS": "200"},
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["fence", "status", "--on", "redis://localhost:1"], "redis"),
        (["fence", "status", "--on", "postgresql://localhost:1/x"], "postgresql"),
        (["fence", "install", "t", "--apply", "--on", "postgresql://localhost:1/x"], "postgresql"),
        (["status", "--on", "redis://localhost:1"], "redis"),
        (["bench", "--on", "redis://localhost:1", "--only", "imports"], "redis"),
    ],
)
def test_a_verb_says_what_to_install(leasehold: Command, arguments: list[str], extra: str) -> None:
    result = without_extras(leasehold, "leasehold", *arguments)
    assert result.returncode == 64
    [line] = result.stderr.splitlines()
    assert f"pip install 'leasehold[{extra}]'" in line


def test_the_benchmark_measures_what_it_can_and_names_the_rest(leasehold: Command) -> None:
    engines = "sqlite,redis,redlock,postgresql,etcd"
    result = without_extras(leasehold, "leasehold", "bench", "--quick", "--only", "fencing", "--engines", engines)
    assert "A fenced write, in sqlite" in result.stdout
    for engine, extra in (("redis", "redis"), ("redlock", "redis"), ("postgresql", "postgresql"), ("etcd", "etcd")):
        assert f"{engine}: " in result.stdout
        assert f"leasehold[{extra}]" in result.stdout
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("engine", "extra"), [("etcd", "etcd"), ("postgresql", "postgresql")])
@pytest.mark.parametrize("what", [["--seed", "1"], ["--histories", "4", "--jobs", "2"], ["--hunt"]])
def test_the_simulator_says_what_to_install(leasehold: Command, engine: str, extra: str, what: list[str]) -> None:
    result = without_extras(leasehold, "leasehold.sim", "--engine", engine, *what)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith(f"pip install 'leasehold[{extra}]'")
    assert "Traceback" not in result.stderr


def test_the_simulator_of_mysql_needs_nothing(leasehold: Command) -> None:
    result = without_extras(leasehold, "leasehold.sim", "--engine", "mysql", "--seed", "1")
    assert (result.returncode, result.stderr) == (0, "")
