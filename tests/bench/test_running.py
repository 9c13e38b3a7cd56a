"""The benchmark run for real, in tiny rounds. Nothing here depends on how fast anything is."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from leasehold import Leasehold
from leasehold.bench import SECTIONS, contended, fencing, idle, imports, main, many, run, uncontended
from leasehold.bench.contestant import Contestant
from leasehold.bench.contestants import LEASEHOLD
from leasehold.bench.crew import Crew, WorkerFailed
from leasehold.bench.effort import QUICK, Effort, Run, Steps
from leasehold.bench.peers import PYTHON_REDIS_LOCK, REDIS_PY
from leasehold.bench.places import NoServer, Place, fresh_namespace, private_places, private_redis
from leasehold.bench.resp import BareSocket, ServerSaidNo
from leasehold.bench.results import Finding, Results, Table

TINY: Effort = dataclasses.replace(
    QUICK,
    name="tiny",
    rounds=3,
    pairs=2,
    crew=2,
    rush_rounds=1,
    rush=0.2,
    work_rounds=1,
    work=0.2,
    waiters=4,
    idle=1.5,
    leases=200,
    leases_ttl=1.0,
    async_waiters=100,
    async_idle=0.5,
    imports=1,
)


@pytest.fixture(scope="module")
def places() -> Iterator[list[Place]]:
    with private_places() as (both, missing):
        assert not missing, missing
        yield both


@pytest.fixture
def tiny(places: list[Place]) -> Run:
    return Run(places, TINY, Steps())


def labels(table: Table) -> list[str]:
    return [row.who for row in table.rows]


def test_uncontended_measures_the_floor_leasehold_and_every_peer(tiny: Run) -> None:
    sqlite, redis = uncontended.measure(tiny).tables
    assert labels(sqlite)[0].startswith("floor")
    assert sqlite.rows[0].figures[uncontended.RATIO].value == 1.0, "the floor is one floor"
    assert {"Leasehold", "filelock", "filelock's SQLite lock", "Leasehold (asyncio)"} <= set(labels(sqlite))
    assert {"Leasehold", "redis-py Lock", "python-redis-lock", "redis-py asyncio Lock (asyncio)"} <= set(labels(redis))
    for row in sqlite.rows + redis.rows:
        ratio, middle, slowest, processor = (row.figures[column] for column in sqlite.columns)
        assert ratio.low is not None
        assert ratio.high is not None
        assert 0 < ratio.low <= ratio.value <= ratio.high
        assert 0 < middle.value <= slowest.value
        assert processor.value > 0


def test_contended_counts_changes_and_finds_leasehold_fair_to_no_less_than_it_is(tiny: Run) -> None:
    finding = contended.measure(tiny)
    for table in finding.tables:
        ours = table.rows[0]
        assert ours.who == "Leasehold"
        assert ours.figures[contended.CHANGES].value > 0, "the holder changed"
        assert 0.5 <= ours.figures[contended.FAIRNESS].value <= 1.0
        assert ours.figures[contended.LONGEST].value > 0
        assert ours.figures[contended.EFFORT].value > 0
    assert [peer.label for peer, _bound in contended.AIMS] == ["python-redis-lock", "redis-py Lock"]
    assert sum(aim.what.startswith("holder changes on redis") for aim in finding.aims) == 2


def test_leasehold_is_to_be_ahead_of_every_peer_that_is_fair_and_a_lock(tmp_path: Path) -> None:
    def lane(contestant: Contestant, changes: float, fairness: float) -> contended.Lane:
        one = contended.Contention(changes, fairness, 0.1, 0.1, [], 0.0)
        return contended.Lane(contestant, cast("Crew", None), [one], [one])

    bare = dataclasses.replace(REDIS_PY, key="by-hand", bare=True)
    lanes = [lane(LEASEHOLD, 50.0, 1.0), lane(REDIS_PY, 100.0, 0.95), lane(PYTHON_REDIS_LOCK, 900.0, 0.4)]
    lanes.append(lane(bare, 2000.0, 1.0))
    place = Place("etcd", "etcd://127.0.0.1", fresh_namespace(), tmp_path)
    [ahead, _fairness, _longest] = contended._aims(place, lanes)
    assert (ahead.what, ahead.bound, ahead.met) == (f"holder changes on etcd, to those of {REDIS_PY.label}", 1.0, False)
    assert ahead.seen.value == 0.5


def test_idle_waiters_of_leasehold_leave_the_server_alone_and_those_that_poll_are_seen(tiny: Run) -> None:
    sqlite, redis = idle.measure(tiny).tables
    commands = {row.who: row.figures[idle.SENT].value for row in redis.rows}
    assert commands[LEASEHOLD.label] * TINY.idle <= TINY.crew * TINY.waiters / 4, "most said nothing at all"
    assert commands[REDIS_PY.label] > 2 * TINY.crew * TINY.waiters, "each of them asks ten times a second"
    assert commands[PYTHON_REDIS_LOCK.label] < commands[REDIS_PY.label]
    assert idle.SENT not in sqlite.columns
    wakes = {row.who: row.figures[idle.WAKES].value for row in sqlite.rows}
    assert wakes["Leasehold"] < wakes["filelock"], "filelock polls"


def test_many_leases_are_all_kept_by_one_keeper(tiny: Run) -> None:
    leases, waiters = many.measure(tiny).tables
    for row in leases.rows:
        assert row.figures[many.LOST].value == 0
        assert row.figures[many.KEEPERS].value == 1
        assert row.figures[many.OBJECTS].value > 0
    for row in waiters.rows:
        assert row.figures[many.OBJECTS].value > 0
        assert row.figures[many.CONNECTIONS].value < 10, "waiters share connections"


def test_importing_brings_in_no_client_library(tiny: Run, tmp_path: Path) -> None:
    table = imports.measure(tiny).tables[0]
    assert labels(table) == ["import leasehold", "import redis"]
    assert table.rows[0].figures[imports.LIBRARIES].value == 0, table.notes
    took, modules = imports.imported("redis", tmp_path)
    assert took > 0
    assert "redis" in modules, "the check can see what is imported"


def test_fenced_writes_are_measured_beside_the_same_writes(tiny: Run) -> None:
    for table in fencing.measure(tiny).tables:
        assert labels(table) == [fencing.UNFENCED, fencing.FENCED]
        assert table.rows[0].figures[fencing.RATIO].value == 1.0


def test_a_whole_run_is_written_as_a_file_that_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("leasehold.bench.effort.QUICK", TINY)
    file = tmp_path / "results.json"
    assert main(["--quick", "--only", "fencing,imports", "--json", str(file)]) == 0
    results = Results.read(file)
    assert results.effort == "tiny"
    assert [table.section for table in results.tables] == ["imports", "fencing", "fencing"]
    assert {"CPython", "SQLite", "Redis", "redis"} <= results.versions.keys()
    shown = capsys.readouterr().out
    assert "A fenced write, in redis" in shown


def test_a_section_that_fails_does_not_take_the_others_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_run: Run) -> Finding:
        raise RuntimeError("planted")

    monkeypatch.setattr("leasehold.bench.effort.QUICK", TINY)
    monkeypatch.setattr(imports, "measure", broken)
    assert main(["--quick", "--only", "fencing,imports"]) == 1
    shown = capsys.readouterr().out
    assert "A fenced write, in sqlite" in shown
    assert "Failed: imports: RuntimeError: planted" in shown


def test_there_is_a_section_for_each_name() -> None:
    assert set(SECTIONS) == {"uncontended", "contended", "idle", "many", "imports", "fencing", "patterns", "watching"}


# The user's own engine


def test_on_a_users_server_nothing_else_is_touched_and_nothing_stays(places: list[Place]) -> None:
    redis = places[1]
    with BareSocket(redis.on) as server:
        server.ask("SET", "precious", "kept")
        before = sorted(server.scan("*"))
        results = run(redis.on, ["uncontended", "fencing"], TINY, quiet=True)
        assert {table.section for table in results.tables} == {"uncontended", "fencing"}
        assert server.ask("GET", "precious") == b"kept"
        assert sorted(server.scan("*")) == before
        server.ask("DEL", "precious")


def test_on_a_users_file_nothing_else_is_touched_and_nothing_stays(tmp_path: Path) -> None:
    file = tmp_path / "leases.db"
    with Leasehold(file) as locks, locks.lock("precious") as lease:
        run(f"sqlite:///{file}", ["uncontended"], TINY, quiet=True)
        lease.check()
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT DISTINCT namespace FROM lease").fetchall() == [("",)]
    connection.close()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("leasehold-bench-")] == []


@pytest.mark.parametrize(
    ("on", "code", "said"),
    [("nonsense", 64, "starts with a scheme"), ("redis://127.0.0.1:1", 78, "cannot be reached")],
)
def test_an_engine_that_cannot_be_measured_is_an_error_of_one_line(
    on: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--on", on, "--only", "uncontended"]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json", "/nosuch/results.json"], "cannot write '/nosuch/results.json': No such file or directory"),
        (["--json", "/dev"], "cannot write '/dev': Is a directory"),
        (["--against", "/nosuch.json"], "cannot read '/nosuch.json': No such file or directory"),
        (["--json", __file__, "--add"], "not a file of results: JSONDecodeError"),
        (["--against", sys.executable], ": not a file of results"),
    ],
)
def test_files_that_cannot_be_used_are_refused_before_anything_is_measured(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(imports, "measure", lambda _run: pytest.fail("something was measured"))
    assert main(["--quick", "--only", "imports", *arguments]) == 64
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_results_that_cannot_be_written_after_all_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results" / "results.json"
    file.parent.mkdir()

    def measure_while_the_folder_goes(_run: Run) -> Finding:
        file.parent.rmdir()
        return Finding([Table("imports", "Measured", ["column"], [])], [])

    monkeypatch.setattr(imports, "measure", measure_while_the_folder_goes)
    assert main(["--quick", "--only", "imports", "--json", str(file)]) == 74
    shown = capsys.readouterr()
    assert "Measured" in shown.out
    assert shown.err.startswith("the results could not be written to ")
    assert shown.err.endswith(": No such file or directory\n")


def test_a_folder_that_is_not_there_is_not_an_engine_that_cannot_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--on", f"sqlite:///{tmp_path}/nosuch/leases.db", "--only", "imports"]) == 64
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot be used: No such file or directory" in line
    assert "reached" not in line


def test_without_a_server_the_rest_is_measured_and_how_to_get_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(NoServer, match="apt-get install redis-server"), private_redis():
        pytest.fail("there is no server here")
    results = run(None, ["fencing"], TINY, quiet=True)
    assert [table.title for table in results.tables] == ["A fenced write, in sqlite"]
    assert len(results.skipped) == 1
    assert "--on redis://HOST" in results.skipped[0]


# Processes


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def await_end(pids: list[int], within: float = 10.0) -> list[int]:
    give_up_at = time.monotonic() + within
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return left


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_behind(how: signal.Signals) -> None:
    command = [sys.executable, "-m", "leasehold.bench", "--only", "idle"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + 60
        while len(started := children_of(bench.pid)) < 12 and time.monotonic() < give_up_at:
            time.sleep(0.05)
        assert len(started) >= 12, "servers and waiters were started"
        bench.send_signal(how)
        assert bench.wait(60) == 128 + how
        assert await_end(started) == []
    finally:
        bench.kill()
        bench.wait()


def test_a_killed_run_leaves_no_worker_behind(places: list[Place]) -> None:
    program = (
        "import json, sys, time; from pathlib import Path\n"
        "from leasehold.bench.crew import Crew; from leasehold.bench.places import Place\n"
        "place = json.loads(sys.argv[1]); place['folder'] = Path(place['folder'])\n"
        "crew = Crew(2, 'contend', Place(**place), contestant='leasehold', name='killed')\n"
        "print([worker.pid for worker in crew._workers], flush=True); time.sleep(600)\n"
    )
    place = json.dumps(dataclasses.asdict(places[0]) | {"folder": str(places[0].folder)})
    bench = subprocess.Popen([sys.executable, "-c", program, place], stdout=subprocess.PIPE, text=True)
    assert bench.stdout is not None
    workers = json.loads(bench.stdout.readline())
    assert all(map(is_running, workers))
    bench.kill()
    bench.wait()
    bench.stdout.close()
    assert await_end(workers) == []


def test_a_worker_that_fails_says_why(places: list[Place]) -> None:
    with pytest.raises(WorkerFailed, match="KeyError: 'nobody'"):
        Crew(1, "contend", places[0], contestant="nobody", name="failing")


def test_a_servers_error_is_raised(places: list[Place]) -> None:
    with BareSocket(places[1].on) as server, pytest.raises(ServerSaidNo, match="ERR"):
        server.ask("NONSENSE")


def test_namespaces_are_never_shared() -> None:
    assert fresh_namespace() != fresh_namespace()
