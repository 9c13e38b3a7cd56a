"""The one file with settings: what goes before what, and what is said when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tool import Command

from leasehold import Leasehold


def write(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def engine_of(leasehold: Command, *arguments: str, **environment: str) -> str:
    result = leasehold("status", "--json", *arguments, **environment)
    assert result.returncode == 0, result
    return str(json.loads(result.stdout)["address"])


def test_an_option_goes_before_the_environment_and_that_before_the_file(leasehold: Command, tmp_path: Path) -> None:
    files = {name: f"sqlite:///{tmp_path}/{name}.db" for name in ("option", "environment", "file")}
    config = write(tmp_path, f'url = "{files["file"]}"\n')
    assert engine_of(leasehold, LEASEHOLD_CONFIG=config, LEASEHOLD_URL="") == files["file"]
    both = {"LEASEHOLD_CONFIG": config, "LEASEHOLD_URL": files["environment"]}
    assert engine_of(leasehold, **both) == files["environment"]
    assert engine_of(leasehold, "--on", files["option"], **both) == files["option"]


def test_the_same_for_the_options_of_a_verb(leasehold: Command, tmp_path: Path) -> None:
    with Leasehold(leasehold.url) as locks, locks.lock("a"), locks.lock("b"), locks.lock("c"):
        config = write(tmp_path, "[status]\nlimit = 2\n")

        def shown(*arguments: str, **environment: str) -> int:
            result = leasehold("status", "--json", *arguments, LEASEHOLD_CONFIG=config, **environment)
            return len(json.loads(result.stdout)["names"])

        assert shown() == 2
        assert shown(LEASEHOLD_STATUS_LIMIT="1") == 1
        assert shown("--limit", "3", LEASEHOLD_STATUS_LIMIT="1") == 3


def test_durations_and_flags_of_run(leasehold: Command, tmp_path: Path) -> None:
    config = write(tmp_path, '[run]\nttl = 60\nwait = "250ms"\n')
    program = ("run", "x", "--", "sh", "-c", 'test "$LEASEHOLD_TTL" = 60')
    result = leasehold(*program, LEASEHOLD_CONFIG=config)
    assert result.returncode == 0, result


def test_a_namespace_for_every_verb(leasehold: Command, tmp_path: Path) -> None:
    with Leasehold(leasehold.url, namespace="shop") as locks, locks.lock("a"):
        config = write(tmp_path, 'namespace = "shop"\n')
        told = json.loads(leasehold("status", "--json", LEASEHOLD_CONFIG=config).stdout)
        assert told["namespace"] == "shop"
        assert [name["name"] for name in told["names"]] == ["a"]
        other = json.loads(leasehold("status", "--json", "--namespace", "other", LEASEHOLD_CONFIG=config).stdout)
        assert other["names"] == []


def test_the_usual_place(leasehold: Command, tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "leasehold"
    folder.mkdir(parents=True)
    write(folder, f'url = "sqlite:///{tmp_path}/usual.db"\n')
    assert engine_of(leasehold, LEASEHOLD_URL="").endswith("usual.db")
    assert not engine_of(leasehold, LEASEHOLD_URL="", LEASEHOLD_CONFIG="").endswith("usual.db")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("url = ", "not valid TOML"),
        ("url = 3", "url in"),
        ('url = "gopher://x"', "no engine serves"),
        ('colour = "mauve"', "'auto', 'always' or 'never'"),
        ("[runn]\nttl = 3", "'runn' in"),
        ("run = 3", "must be a table"),
        ("[run]\nttls = 3", "no setting 'ttls'"),
        ("[run]\nttl = true", "ttl of [run]"),
        ('[status]\njson = "yes"', "true or false"),
        ('[status]\nlimit = "many"', "limit"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(leasehold: Command, tmp_path: Path, text: str, told: str) -> None:
    result = leasehold("status", LEASEHOLD_CONFIG=write(tmp_path, text), LEASEHOLD_URL="")
    assert result.returncode == 64, result
    [line] = result.stderr.splitlines()
    assert told in line


def test_a_file_that_is_named_must_be_there(leasehold: Command) -> None:
    result = leasehold("status", LEASEHOLD_CONFIG="/nowhere/config.toml")
    assert result.returncode == 64
    assert "not a file" in result.stderr


def test_a_password_is_for_its_owner_only(leasehold: Command, tmp_path: Path) -> None:
    text = 'url = "redis://:canary-5@127.0.0.1:1/0"\n'
    open_to_all = leasehold("status", LEASEHOLD_CONFIG=write(tmp_path, text, 0o644), LEASEHOLD_URL="")
    assert open_to_all.returncode == 64
    assert "chmod 600" in open_to_all.stderr
    private = leasehold("status", LEASEHOLD_CONFIG=write(tmp_path, text), LEASEHOLD_URL="")
    assert private.returncode == 78
    assert "canary" not in open_to_all.stderr + private.stderr


def test_colour(leasehold: Command, tmp_path: Path) -> None:
    config = write(tmp_path, 'colour = "always"\n')
    assert "\x1b[" in leasehold("engines", "--on", "sqlite://", LEASEHOLD_CONFIG=config).stdout
    never = leasehold("engines", "--on", "sqlite://", LEASEHOLD_CONFIG=config, NO_COLOR="1")
    assert "\x1b[3" not in never.stdout
