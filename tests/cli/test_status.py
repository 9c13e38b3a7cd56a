"""``leasehold status``, ``break`` and ``engines``: what scripts parse and what people read."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import time
from typing import Any

import pytest
from tests.cli.tool import LEASEHOLD, Command, Heart, call_in_process, wait_for

from leasehold import Capability, Leasehold, LeaseLost


def data(command: Command, *arguments: str) -> Any:
    result = call_in_process(["status", "--json", *arguments], command.environment)
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    return json.loads(result.stdout)


def start_waiter(command: Command, name: str, label: str) -> None:
    command.start("run", name, "--wait", "60", "--label", label, "--", "true")
    wait_for(lambda: data(command, name)["names"][0]["waiters"], "it waits")


def test_the_data_is_as_documented(each: Command, heart: Heart, request: pytest.FixtureRequest) -> None:
    space = f"space {request.node.name}"
    each.start_with(heart, "name", "--ttl", "20", "--label", "the holder", "--namespace", space)
    each.start("run", "name", "--wait", "60", "--label", "the waiter", "--namespace", space, "--", "true")
    wait_for(lambda: data(each, "--namespace", space)["names"][0]["waiters"], "it waits")
    shown = data(each, "--namespace", space)
    assert set(shown) == {"engine", "address", "namespace", "names", "matching", "more"}
    assert shown["engine"] in ("sqlite", "redis")
    assert (shown["namespace"], shown["more"]) == (space, False)
    [name] = shown["names"]
    assert set(name) == {"name", "token", "closed_for", "holders", "waiters"}
    [holder], [waiter] = name["holders"], name["waiters"]
    assert name["name"] == "name"
    assert name["token"] == holder["token"]
    assert re.fullmatch(r"\d+", holder["token"])
    assert (holder["mode"], waiter["mode"]) == ("exclusive", "exclusive")
    assert re.fullmatch(r"the holder@[\w.-]+:\d+", holder["holder"])
    assert re.fullmatch(r"the waiter@[\w.-]+:\d+", waiter["waiter"])
    assert 0 <= holder["held_for"] < 60
    assert 0 < holder["expires_in"] <= 20
    assert 0 <= waiter["waited_for"] < 60
    assert waiter["patience_left"] > 0
    assert set(holder) == {"holder", "token", "mode", "held_for", "expires_in"}
    assert set(waiter) == {"waiter", "mode", "waited_for", "patience_left"}


def test_a_friendly_line_when_there_is_nothing(leasehold: Command) -> None:
    result = leasehold("status")
    assert result.returncode == 0
    assert result.stdout.startswith("Nothing is held and nobody waits (sqlite at ")


def test_the_overview(leasehold: Command, heart: Heart) -> None:
    leasehold.start_with(heart, "nightly-export", "--label", "export")
    start_waiter(leasehold, "nightly-export", "other")
    heading, line = leasehold("status").stdout.splitlines()
    assert heading.split() == ["NAME", "HOLDER", "TOKEN", "HELD", "FOR", "TIME", "LEFT", "WAITERS"]
    assert re.fullmatch(r"nightly-export +export@\S+:\d+ +\d+ +\d+\.\ds +\d+\.\ds +1", line)


def test_named_names_are_shown_in_detail(leasehold: Command, heart: Heart) -> None:
    leasehold.start_with(heart, "held", "--label", "export", "--shared")
    start_waiter(leasehold, "held", "other")
    lines = leasehold("status", "held", "free").stdout.splitlines()
    assert re.fullmatch(r"held +held", lines[0])
    assert re.fullmatch(r"  holder +export@\S+ \(shared\)  token \d+  for \d+\.\ds, \d+\.\ds left", lines[1])
    assert re.fullmatch(r"  waiter 1 +other@\S+  for \d+\.\ds, place kept for \d+\.\ds", lines[2])
    assert re.fullmatch(r"free +free", lines[3])


def test_many_names_are_limited(leasehold: Command, heart: Heart, sqlite_url: str) -> None:
    with Leasehold(sqlite_url) as locks:
        held = [locks.lock(f"name-{number:03}").acquire() for number in range(7)]
        limited = leasehold("status", "--limit", "5")
        assert len(limited.stdout.splitlines()) == 6
        assert "more than 5 names; --limit shows more" in limited.stderr
        assert data(leasehold, "--limit", "5")["more"] is True
        everything = data(leasehold, "--limit", "7")
        assert ([one["name"] for one in everything["names"]], everything["more"]) == (
            [f"name-{number:03}" for number in range(7)],
            False,
        )
        for lease in held:
            lease.release()


def test_watch_in_a_pipe_is_one_object_a_line(leasehold: Command) -> None:
    watching = leasehold.start("status", "--watch=0.2", "--json")
    assert watching.stdout is not None
    shown = [json.loads(watching.stdout.readline()) for _ in range(3)]
    assert [one["names"] for one in shown] == [[], [], []]
    watching.send_signal(2)
    assert watching.wait(20) == 0


def test_who_stops_reading_gets_no_traceback(leasehold: Command) -> None:
    result = subprocess.run(
        ["sh", "-c", '"$@" status --watch=0.1 | head -n 2', "sh", *LEASEHOLD],
        env=leasehold.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (result.stdout.count("\n"), result.stderr) == (2, "")


@pytest.mark.parametrize("hostile", ["\x1b[2J\x07red", "[bold red]x[/]", "\u202egnp.exe", "a\nb", "\x9b31m"])
def test_hostile_labels_cannot_steer_the_terminal(leasehold: Command, sqlite_url: str, hostile: str) -> None:
    """Somebody wrote them past the library, straight into the engine."""
    with Leasehold(sqlite_url, label="LABEL") as locks, contextlib.suppress(LeaseLost), locks.lock("name"):
        with contextlib.closing(sqlite3.connect(leasehold.folder / "leases.db")) as file:
            tables = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            changed = sum(
                file.execute(f"UPDATE {table} SET {column} = replace({column}, 'LABEL', ?)", [hostile]).rowcount
                for (table,) in tables
                for column in text_columns(file, table)
            )
            file.commit()
        assert changed > 0
        for arguments in (["status"], ["status", "name"], ["status", "--json"]):
            result = call_in_process(arguments, leasehold.environment)
            assert result.returncode == 0
            assert "@" in result.stdout
            for character in result.stdout + result.stderr:
                assert character.isprintable() or character == "\n", (arguments, result.stdout)
            assert (hostile in result.stdout) is hostile.isprintable()


def text_columns(file: sqlite3.Connection, table: str) -> list[str]:
    return [name for _, name, kind, *_ in file.execute(f"PRAGMA table_info({table})") if kind.upper() in ("TEXT", "")]


# Break


def test_break_tells_the_new_token(each: Command, heart: Heart, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    running = each.start_with(heart, name, "--ttl", "2")
    before = int(data(each, name)["names"][0]["token"])
    result = each("break", name, "--because", "its host is gone", "--yes", "--json")
    shown = json.loads(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert (shown["name"], shown["because"]) == (name, "its host is gone")
    assert int(shown["token"]) > before
    assert shown["was"]["holders"][0]["token"] == str(before)
    after = each("run", name, "--", "printenv", "LEASEHOLD_TOKEN")
    assert int(after.stdout) > int(shown["token"])
    assert running.wait(20) == 77


def test_break_needs_somebody_to_break(leasehold: Command) -> None:
    result = leasehold("break", "name", "--because", "x", "--yes")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "leasehold: nobody holds 'name'; there is nothing to break\n"


def test_break_without_a_terminal_needs_a_yes(leasehold: Command, heart: Heart) -> None:
    leasehold.start_with(heart, "name")
    result = leasehold("break", "name", "--because", "x")
    assert result.returncode == 64
    assert "add --yes" in result.stderr
    assert data(leasehold, "name")["names"][0]["holders"]


@pytest.mark.parametrize("reason", ["", "  ", "a\nb", "x" * 300])
def test_break_needs_a_reason(leasehold: Command, heart: Heart, reason: str) -> None:
    leasehold.start_with(heart, "name")
    assert leasehold("break", "name", "--because", reason, "--yes").returncode == 64
    assert leasehold("break", "name", "--yes").returncode == 64
    assert data(leasehold, "name")["names"][0]["holders"]


# Engines


def test_engines_as_data(leasehold: Command) -> None:
    engines = json.loads(leasehold("engines", "--json").stdout)["engines"]
    assert [one["engine"] for one in engines][:2] == ["sqlite", "redis"]
    schemes = {"redlock", "consul", "etcd", "zookeeper", "postgresql", "postgresql+session", "mysql", "mysql+session"}
    assert {one["engine"] for one in engines} == schemes | {"sqlite", "redis", "redis+cluster"}
    for one in engines:
        assert set(one["capabilities"]) == {capability.name.lower() for capability in Capability}
        assert all(isinstance(has, bool) for has in one["capabilities"].values())
        assert isinstance(one["fit_for_correctness"], bool)
        assert all(text.strip() for text in one["guarantee"].values())


def test_engines_are_described_before_any_client_library_is_installed() -> None:
    clients = ("hiredis", "redis", "psycopg", "pymysql", "grpc", "kazoo", "consul", "sqlalchemy")
    words = f"import sys; sys.modules.update(dict.fromkeys({clients})); from leasehold.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", words, "engines"], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    engines = {line.partition(" ")[0] for line in result.stdout.splitlines()}
    assert {"sqlite", "redis", "postgresql", "mysql+session"} <= engines


def test_engines_say_first_what_is_not_guaranteed(leasehold: Command) -> None:
    lines = leasehold("engines", COLUMNS="100").stdout.splitlines()
    for engine in ("sqlite", "redis"):
        start = next(number for number, line in enumerate(lines) if line.startswith(f"{engine} "))
        assert lines[start + 1].startswith("  not guaranteed ")
    assert max(len(line) for line in lines) <= 100


def test_engines_by_name_and_in_short(leasehold: Command) -> None:
    one = leasehold("engines", "etcd", COLUMNS="100").stdout.splitlines()
    assert [line.partition(" ")[0] for line in one if not line.startswith(" ")] == ["etcd"]
    assert len(leasehold("engines", COLUMNS="100").stdout.split("In short")) == 2
    short = leasehold("engines", COLUMNS="100").stdout.splitlines()[-11:]
    assert [line.split()[0] for line in short][:2] == ["sqlite", "redis"]
    assert re.split(r" {2,}", short[-1]) == ["mysql+session", "correctness", "1 s", "no", "no", "no", "no"]
    for wrong in (["redis://:hunter22@h"], ["oracle"], ["redis", "--on", "redis://h"]):
        refused = leasehold("engines", *wrong)
        assert (refused.returncode, refused.stdout) == (64, "")
        assert "hunter22" not in refused.stderr


def test_a_mistyped_scheme_is_set_right(leasehold: Command) -> None:
    for wrong, meant in (("zookeper", "zookeeper"), ("postgressql", "postgresql"), ("reddis", "redis")):
        assert f"is {meant}:// meant?" in leasehold("status", "--on", f"{wrong}://h").stderr
    assert "meant?" not in leasehold("status", "--on", "gopher://h").stderr
    assert "sqlite:////path/to/file" in leasehold("status", "--on", "/tmp/leases.db").stderr


def test_engines_asks_no_server(leasehold: Command) -> None:
    started = time.monotonic()
    result = leasehold.in_process_of_its_own("engines", "--on", "redis://:hunter22-secret@203.0.113.1:1/0", "--json")
    assert result.returncode == 0
    assert "hunter22-secret" not in result.stdout
    assert json.loads(result.stdout)["engines"][0]["engine"] == "redis"
    assert time.monotonic() - started < 10


# Verbs that belong to other parts


def test_demo_and_bench_are_reached(leasehold: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.demo.main", lambda: 7)
    monkeypatch.setattr("leasehold.bench.main", len)
    assert leasehold("demo").returncode == 7
    assert leasehold("bench", "--on", "x", "--help").returncode == 3
