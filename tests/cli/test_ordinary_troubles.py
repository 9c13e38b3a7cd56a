"""What is nobody's defect: a full disk, a reader that has gone, a folder that is gone, a file that is another's."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.tool import LEASEHOLD, Command

PIPE = 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["status"], ["engines"], ["--help"], ["jobs", "--json"], ["doctor"]])
def test_an_answer_that_cannot_be_written_is_not_a_defect(leasehold: Command, arguments: list[str]) -> None:
    assert leasehold("run", "name", "--", "true").returncode == 0
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*LEASEHOLD, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
            cwd=leasehold.folder, env=leasehold.environment,
        )  # fmt: skip
    assert result.stderr == "leasehold: the answer could not be written: No space left on device\n"
    assert result.returncode == 74


@pytest.mark.parametrize("arguments", [["doctor"], ["jobs"], ["jobs", "--json"], ["engines"], ["status", "--json"]])
def test_a_reader_that_has_gone_is_told_by_the_same_code_everywhere(leasehold: Command, arguments: list[str]) -> None:
    assert leasehold("run", "name", "--", "true").returncode == 0
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [*LEASEHOLD, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
            cwd=leasehold.folder, env=leasehold.environment,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (PIPE, "")


@pytest.mark.parametrize("arguments", [["lint"], ["status", "--on", "sqlite:///a.db"]])
def test_a_working_folder_that_is_gone_is_said(leasehold: Command, arguments: list[str]) -> None:
    gone = leasehold.folder / "gone"
    gone.mkdir()
    script = 'cd "$1"; rmdir "$1"; shift; exec "$@"'
    command = ["sh", "-c", script, "sh", str(gone), sys.executable, "-P", "-m", "leasehold", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=leasehold.environment)
    assert result.returncode == 64
    assert "leasehold: the working folder is gone; change to one that is there\n" in result.stderr


def test_floors_in_a_file_that_is_no_database(leasehold: Command) -> None:
    text = leasehold.folder / "notes.txt"
    text.write_text("no database at all\n" * 100)
    result = leasehold("fence", "status", "--on", f"sqlite:///{text}")
    assert (result.returncode, result.stdout) == (64, "")
    assert "is not a SQLite database" in result.stderr


def test_floors_in_a_file_that_cannot_be_opened(leasehold: Command) -> None:
    database = leasehold.folder / "accounts.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE leasehold_fence (resource, token, written)")
    for ending in ("wal", "shm"):  # as on a file system that is read-only, SQLite cannot make them
        database.with_name(f"accounts.db-{ending}").mkdir()
    result = leasehold("fence", "status", "--on", f"sqlite:///{database}")
    assert (result.returncode, result.stdout) == (78, "")
    assert "cannot be read" in result.stderr


def test_engines_are_described_to_users_without_a_home(leasehold: Command) -> None:
    del leasehold.environment["HOME"]
    command = ["-c", "import pwd\npwd.getpwuid = lambda _: {}[0]\nfrom leasehold.cli import main\nmain()", "engines"]
    result = subprocess.run(
        [sys.executable, *command, "redis"], capture_output=True, text=True, check=False, timeout=60,
        env=leasehold.environment,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
