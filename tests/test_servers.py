"""The tool that finds and gets the servers: what it takes for a server, and what it tells people."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import servers
from leasehold.chaos.servers.programs import PROGRAMS


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on PATH, no cached server, and no server given by URL."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(servers, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(servers, "POLICY", tmp_path / "policy-rc.d")
    for engine in servers.ENGINES:
        monkeypatch.delenv(servers.url_variable(engine), raising=False)
    return tmp_path


def program(path: Path, prints: str = "v=1.2.3") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


def test_finds_nothing_on_an_empty_machine(machine: Path) -> None:
    assert servers.find("redis") is None
    assert [one.how for one in servers.survey(["redis"])] == ["missing"]


def test_finds_a_program_on_path_and_its_version(machine: Path) -> None:
    path = program(machine / "bin" / "redis-server", "Redis server v=7.0.15 sha=00000000:0 bits=64")
    [found] = servers.survey(["redis"])
    assert (found.how, found.path, found.version) == ("PATH", path, "7.0.15")


def test_prefers_path_to_what_it_unpacked(machine: Path) -> None:
    unpacked = program(machine / "cache" / "valkey" / "usr" / "bin" / "valkey-server")
    assert servers.find("valkey") == unpacked
    on_path = program(machine / "bin" / "valkey-server")
    assert servers.find("valkey") == on_path


def test_takes_the_newest_of_several_versions(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = servers.Engine(program="postgres", packages=(), places=(f"{machine}/pg/*/bin/postgres",))
    monkeypatch.setattr(servers, "ENGINES", {"postgresql": row})
    program(machine / "pg" / "9" / "bin" / "postgres")
    newest = program(machine / "pg" / "15" / "bin" / "postgres")
    assert servers.find("postgresql") == newest


def test_passes_over_a_program_without_its_companions(machine: Path) -> None:
    program(machine / "bin" / "postgres")
    assert servers.find("postgresql") != machine / "bin" / "postgres"
    program(machine / "bin" / "initdb")
    assert servers.find("postgresql") == machine / "bin" / "postgres"


def test_passes_over_a_server_whose_runtime_is_missing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = program(machine / "zookeeper.jar")
    row = servers.Engine(program="zookeeper.jar", packages=(), places=(str(jar),), needs=("java",))
    monkeypatch.setattr(servers, "ENGINES", {"zookeeper": row})
    assert servers.find("zookeeper") is None
    program(machine / "bin" / "java")
    assert servers.find("zookeeper") == jar


def test_a_link_to_another_server_is_no_server(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's MariaDB goes by the name of MySQL's program, too."""
    row = servers.Engine(program="mysqld", packages=(), impostors=("mariadbd",))
    monkeypatch.setattr(servers, "ENGINES", {"mysql": row})
    program(machine / "bin" / "mariadbd")
    (machine / "bin" / "mysqld").symlink_to("mariadbd")
    assert servers.find("mysql") is None
    unpacked = program(machine / "cache" / "mysql" / "usr" / "sbin" / "mysqld")
    assert servers.find("mysql") == unpacked


def test_what_is_unpacked_with_its_libraries_is_started_with_them(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader stands in for the one of another release: it shows what it was told."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    unpacked = machine / "cache" / "scratch" / "unpacked"
    libraries = unpacked / "usr" / "lib" / "x86_64-linux-gnu"
    loader = program(libraries / "ld-linux-x86-64.so.2")
    loader.write_text('#!/bin/sh\necho "$@"\n')
    (unpacked / "lib64").mkdir()
    (unpacked / "lib64" / loader.name).symlink_to("/nowhere")  # it would lead to this machine's own
    program(unpacked / "usr" / "sbin" / "mysqld").write_bytes(b"\x7fELF\0/lib64/ld-linux-x86-64.so.2\0")
    servers._launched_by_its_own_loader(unpacked, "mysqld").rename(machine / "cache" / "mysql")
    launcher = servers.find("mysql")
    assert launcher is not None
    said = subprocess.run([launcher, "--port=1", "two words"], capture_output=True, text=True, check=True).stdout
    all_of_it = machine / "cache" / "mysql" / "usr" / "sbin" / ".." / ".." / "all"
    of_it = all_of_it / "usr" / "lib" / "x86_64-linux-gnu"
    assert said == f"--library-path {of_it} {all_of_it / 'usr' / 'sbin' / 'mysqld'} --port=1 two words\n"


def test_what_lacks_its_loader_is_not_taken_for_a_server(machine: Path) -> None:
    unpacked = machine / "cache" / "scratch" / "unpacked"
    program(unpacked / "usr" / "sbin" / "mysqld").write_bytes(b"\x7fELF\0/lib64/ld-linux-x86-64.so.2\0")
    with pytest.raises(servers.Unavailable, match="without the loader"):
        servers._launched_by_its_own_loader(unpacked, "mysqld")


@pytest.mark.parametrize("engine", PROGRAMS)
def test_the_chaos_tester_knows_each_program_by_the_same_marks(engine: str) -> None:
    """It comes with the package, and this tool does without the package: so each has a list."""
    known, row = PROGRAMS[engine], servers.ENGINES[engine]
    assert (known.file, known.places, known.beside) == (row.program, row.places, row.beside)
    assert known.impostors == row.impostors
    assert known.package in row.packages
    assert set(known.needs) >= set(row.needs)


def test_a_given_url_is_enough_and_is_never_shown(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "redis://:canary@db.example/0"
    monkeypatch.setenv("LEASEHOLD_TEST_REDIS_URL", url)
    assert servers.given_url("redis") == url
    assert servers.main(["ensure", "redis"]) == 0
    assert servers.main(["list", "--json"]) == 0
    shown = capsys.readouterr()
    assert "canary" not in shown.out + shown.err
    assert "$LEASEHOLD_TEST_REDIS_URL" in shown.out


def test_says_how_to_get_a_server_that_it_cannot_get(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert servers.main(["ensure", "redis"]) == 1
    message = capsys.readouterr().err
    for hint in ("no apt-get", "apt-get install redis-server", "compose.yaml", "LEASEHOLD_TEST_REDIS_URL"):
        assert hint in message


def test_compose_starts_what_it_is_said_to_start() -> None:
    text = (Path(__file__).parents[1] / "compose.yaml").read_text()
    services = set(re.findall(r"^  ([a-z0-9-]+):", text, re.MULTILINE)) - {"redis-2", "redis-3"}
    assert services == {engine for engine, row in servers.ENGINES.items() if row.in_compose}
    ports = set(re.findall(r"127\.0\.0\.1:(\d+):", text))
    for engine in (*services, "redlock"):
        named = re.search(rf"{servers.url_variable(engine)}=(\S+)", text)
        assert named, f"how the tests are pointed at {engine} is not said"
        assert set(re.findall(r":(1\d{4})\b", named[1])) <= ports


def test_json_names_path_and_version(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = program(machine / "bin" / "redis-server")
    assert servers.main(["list", "redis", "valkey", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "redis": {"how": "PATH", "path": str(path), "version": "1.2.3"},
        "valkey": {"how": "missing", "path": None, "version": None},
    }


def test_refuses_an_engine_that_it_does_not_know(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        servers.main(["ensure", "oracle"])
    assert stop.value.code == 2
    assert "known are redis, valkey" in capsys.readouterr().err


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 0\n"], ids=["none", "own"])
@pytest.mark.parametrize("killed_earlier", [False, True])
def test_the_service_policy_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, killed_earlier: bool
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(servers, "POLICY", policy)
    if before:
        policy.write_text(before)
    if killed_earlier:
        # Entered and never left, as after a kill -9.
        abandoned = servers._no_service_starts([])
        abandoned.__enter__()
    with pytest.raises(KeyboardInterrupt), servers._no_service_starts([]):
        assert policy.read_text().endswith("exit 101\n")
        assert policy.stat().st_mode & 0o111
        raise KeyboardInterrupt
    assert (policy.read_text() if policy.exists() else None) == before
    assert sorted(tmp_path.glob("policy*")) == ([policy] if before else [])
