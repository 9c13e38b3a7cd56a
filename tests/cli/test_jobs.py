"""``leasehold jobs`` as a check: what cannot be looked at, or is not there, is never all well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tool import Command

LONG = "3000d"


@pytest.fixture
def kept(leasehold: Command) -> Path:
    """The file of the books, after one job was run."""
    assert leasehold("run", "export", "--every", LONG, "--", "true").returncode == 0
    return leasehold.folder / "leases.db-jobs"


@pytest.mark.usefixtures("kept")
def test_a_name_that_was_never_asked_for_is_not_well(leasehold: Command) -> None:
    assert leasehold("jobs", "export").returncode == 0
    result = leasehold("jobs", "export", "exprot", "--json")
    assert result.returncode == 1
    assert "no job 'exprot' was ever asked for here" in result.stderr
    assert [job["name"] for job in json.loads(result.stdout)["jobs"]] == ["export"]
    assert leasehold("jobs", "exprot").returncode == 1


def test_an_engine_that_has_no_job_yet_is_well(leasehold: Command) -> None:
    assert leasehold("run", "no-tick", "--", "true").returncode == 0
    result = leasehold("jobs")
    assert (result.returncode, result.stdout, result.stderr) == (0, "No job was ever asked for here.\n", "")


@pytest.mark.parametrize("by", ["option", "variable", "default"])
def test_a_lease_file_that_is_not_there_is_not_well(leasehold: Command, by: str) -> None:
    url = f"sqlite:///{leasehold.folder}/typo.db"
    given = ["--on", url] if by == "option" else []
    result = leasehold("jobs", "--json", *given, LEASEHOLD_URL={"variable": url, "default": ""}.get(by, leasehold.url))
    assert result.returncode == 1
    assert "there is no lease file " in result.stderr
    assert "check --on and LEASEHOLD_URL" in result.stderr
    assert json.loads(result.stdout) == {"jobs": []}
    assert not (leasehold.folder / "typo.db").exists()


def test_a_folder_that_is_not_there_is_a_wrong_argument(leasehold: Command) -> None:
    result = leasehold("jobs", "--on", f"sqlite:///{leasehold.folder}/typo/leases.db")
    assert (result.returncode, result.stdout) == (64, "")
    assert "cannot be used: No such file or directory" in result.stderr


def test_a_home_that_cannot_be_used_is_a_wrong_argument(leasehold: Command) -> None:
    result = leasehold("jobs", LEASEHOLD_URL="", HOME="/dev/null")
    assert (result.returncode, result.stdout) == (64, "")
    assert "cannot be used: Not a directory" in result.stderr


@pytest.mark.parametrize("verb", [["jobs"], ["run", "export", "--every", LONG, "--", "true"]])
@pytest.mark.parametrize("what", ["text", "folder"])
def test_books_that_cannot_be_read_are_explained(leasehold: Command, kept: Path, verb: list[str], what: str) -> None:
    kept.unlink()
    if what == "text":
        kept.write_text("this is no database, and longer than its header would be\n" * 20)
    else:
        kept.mkdir()
    result = leasehold(*verb)
    assert (result.returncode, result.stdout) == (78, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("leasehold: the books of jobs in '")
    assert "unexpected" not in line
