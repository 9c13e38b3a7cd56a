"""What is wrong is told in one clear line, with the right exit code and without any secret."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Server
from tests.cli.tool import LEASEHOLD, Command, call_in_process, now, wait_for

from leasehold.testing.ports import free_port

SECRET = "canary-hunter-22/&é"
ENCODED = "canary-hunter-22%2F%26%C3%A9"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "Missing argument 'NAME'"),
        (["run", "name"], "say which program to run, after --"),
        (["run", "name", "--", ""], "say which program to run, after --"),
        (["run", "", "--", "true"], "name is empty"),
        (["run", "a\nb", "--", "true"], "U+000A at position 1"),
        (["run", "x" * 256, "--", "true"], "at most 255 are allowed"),
        (["run", "name", "--ttl", "0", "--", "true"], "ttl must be a number of seconds"),
        (["run", "name", "--ttl", "nan", "--", "true"], "'nan' is not a duration; write seconds, or 250ms, 90s"),
        (["run", "name", "--ttl", "-1", "--", "true"], "'-1' is not a duration"),
        (["run", "name", "--ttl", "25h", "--", "true"], "at most 86400"),
        (["run", "name", "--wait", "1e9", "--", "true"], "'1e9' is not a duration"),
        (["run", "name", "--wait", "400d", "--", "true"], "wait must be a number of seconds"),
        (["run", "name", "--longest-hold", "0", "--", "true"], "longest_hold must be"),
        (["run", "name", "--permits", "0", "--", "true"], "permits is an int from 1"),
        (["run", "name", "--permits", "2", "--shared", "--", "true"], "exclude each other"),
        (["run", "name", "--quiet", "-v", "--", "true"], "exclude each other"),
        (["run", "name", "--on-lost", "term", "--", "true"], "say how long the program may take after term"),
        (["run", "name", "--on-lost", "kill:1", "--", "true"], "kill comes last"),
        (["run", "name", "--on-lost", "stop:1", "--", "true"], "does not start with a signal"),
        (["run", "name", "--purpose", "fun", "--", "true"], "'fun' is not one of"),
        (["run", "name", "--label", "a|b", "--", "true"], "no '|'"),
        (["run", "name", "--namespace", "a\x00b", "--", "true"], "U+0000"),
        (["run", "name", "--on", "nonsense", "--", "true"], "starts with a scheme"),
        (["run", "name", "--on", "", "--", "true"], "--on is empty"),
        (["run", "name", "--on", "gopher://x", "--", "true"], "no engine serves URLs of the scheme 'gopher'"),
        (["run", "redis://host/0", "--", "true"], "give it with --on"),
        (["run", "name", "ls", "-l"], "No such option"),
        (["status", "--limit", "0"], "0 is not in the range"),
        (["status", "--watch=0"], "at least 0.1 seconds"),
        (["status", ""], "name is empty"),
        (["break", "name"], "Missing option '--because'"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["ruin"], "No such command 'ruin'"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_input(leasehold: Command, arguments: list[str], told: str) -> None:
    result = call_in_process(arguments, leasehold.environment)
    assert told in result.stderr
    assert result.returncode == 64
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not (leasehold.folder / "leases.db").exists(), "the engine was asked for nothing"


def test_without_a_verb_the_help_is_shown(leasehold: Command) -> None:
    result = leasehold()
    assert result.returncode == 64
    assert "Usage: leasehold" in result.stderr


@pytest.mark.parametrize("verb", ["", "run", "status", "break", "engines", "completion"])
def test_every_help_has_examples(leasehold: Command, verb: str) -> None:
    result = leasehold(*verb.split(), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Examples:" in result.stdout
    assert "LEASEHOLD_URL" in result.stdout or verb in ("engines", "completion")


def test_the_version(leasehold: Command) -> None:
    import leasehold as package

    assert leasehold("--version").stdout == f"leasehold {package.__version__}\n"


# Engines that do not answer


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@pytest.fixture
def nobody() -> str:
    return f"redis://127.0.0.1:{free_port()}/0"


@pytest.mark.parametrize("engine", ["black_hole", "nobody"])
@pytest.mark.parametrize(
    "arguments",
    [["run", "name", "--", "true"], ["run", "name", "--wait", "1", "--", "true"], ["status", "--json"],
     ["break", "name", "--because", "x", "--yes"]],
)  # fmt: skip
def test_an_unreachable_engine(
    leasehold: Command, engine: str, arguments: list[str], request: pytest.FixtureRequest
) -> None:
    started = now()
    result = leasehold(*arguments, LEASEHOLD_URL=request.getfixturevalue(engine))
    assert result.returncode == 78
    assert result.stderr.startswith("leasehold: ")
    assert result.stderr.count("\n") == 1
    assert now() - started < 12


def test_a_frozen_engine_at_the_end_does_not_hide_the_exit_code(server: Server, leasehold: Command) -> None:
    started = leasehold.start(
        "run",
        "frozen-at-the-end",
        "--on",
        server.url,
        "--",
        "sh",
        "-c",
        ": > ready; while ! test -e go; do sleep 0.05; done; exit 5",
    )
    wait_for((leasehold.folder / "ready").exists, "the program is ready")
    server.freeze()
    (leasehold.folder / "go").touch()
    assert "could not be released and ends by itself in 30 s" in started.communicate(timeout=30)[1]
    assert started.returncode == 5


def test_a_defect_is_one_line_and_a_traceback_on_request(leasehold: Command) -> None:
    plant = "from leasehold.cli import app, status; status.client = None; raise SystemExit(app.call(['status']))"
    calls = [
        subprocess.run(
            [sys.executable, "-c", plant],
            env={**leasehold.environment, **debug},
            capture_output=True,
            text=True,
            check=False,
        )
        for debug in ({}, {"LEASEHOLD_DEBUG": "1"})
    ]
    assert [call.returncode for call in calls] == [70, 70]
    assert calls[0].stderr.count("\n") == 1
    assert "unexpected TypeError" in calls[0].stderr
    assert "Traceback" in calls[1].stderr


# Secrets

URLS = [
    f"redis://:{ENCODED}@127.0.0.1:1/0",
    f"redis://user:{ENCODED}@127.0.0.1:1/0",
    f"rediss://user:{ENCODED}@127.0.0.1:1/0",
    f"redis://127.0.0.1:1/0?password={ENCODED}",
    f"redis://127.0.0.1:1/0?db=1&password={ENCODED}&nonsense=1",
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"redis://user:{ENCODED}@127.0.0.1:notaport/0",
    f"redis://user:{ENCODED}@[broken/0",
    f"redis+sentinel://user:{ENCODED}@127.0.0.1:1/service",
    f"gopher://user:{ENCODED}@127.0.0.1:1/0",
    f"sqlite://user:{ENCODED}@host/file",
    f"redis://user:{ENCODED}{'x' * 500}@127.0.0.1:1/0",
]


def shows_the_secret(text: str) -> bool:
    return "canary-h" in text or "hunter-22" in text


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("debug", ["", "1"])
def test_no_secret_is_shown(leasehold: Command, url: str, debug: str) -> None:
    environment = {**leasehold.environment, "LEASEHOLD_URL": url, "LEASEHOLD_DEBUG": debug}
    by_option = {**leasehold.environment, "LEASEHOLD_DEBUG": debug}
    calls = [
        (["run", "name", "--", "true"], environment),
        (["run", "name", "-v", "--on", url, "--", "true"], by_option),
        (["run", url, "--", "true"], by_option),
        (["run", "name", "--onn", url, "--", "true"], by_option),
        (["run", "name", f"--namespace={url}\x00", "--", "true"], by_option),
        (["run", "name", "--ttl", url, "--", "true"], by_option),
        (["run", "name", "--", url], by_option),
        (["status", "--json"], environment),
        (["status", url], by_option),
        (["status", "--limit", url], by_option),
        (["engines", "--on", url, "--json"], by_option),
        (["engines", "--on", url], by_option),
        (["engines", url], by_option),
        (["break", "name", "--because", "x", "--yes"], environment),
        ([url], by_option),
    ]
    for arguments, where in calls:
        result = call_in_process(arguments, where)
        assert not shows_the_secret(result.stdout + result.stderr), (arguments, result.stdout + result.stderr)


def test_a_refused_password_is_not_shown(server: Server, leasehold: Command) -> None:
    url = server.url.replace("redis://", f"redis://somebody:{ENCODED}@")
    result = leasehold("run", "name", "--on", url, "--", "true", LEASEHOLD_DEBUG="1")
    assert result.returncode == 78
    assert not shows_the_secret(result.stdout + result.stderr)


@pytest.mark.parametrize(
    ("url", "shape"),
    [
        (f"mysql://worker:{ENCODED}@127.0.0.1", "mysql://user[:password]@host[:port]/database"),
        (f"mysql://worker:{ENCODED}@127.0.0.1/shop?socket=/x", "mysql://user:password@/database?socket=/path"),
        ("redis://worker@127.0.0.1", "redis://[user:password@]host[:port]"),
        ("etcd://worker@127.0.0.1", "etcd://[user:password@]host[:port]"),
    ],
)
def test_where_a_password_belongs_can_be_read(leasehold: Command, url: str, shape: str) -> None:
    result = call_in_process(["status", "--on", url], leasehold.environment)
    assert result.returncode == 64
    assert shape in result.stderr
    assert not shows_the_secret(result.stderr)


def test_the_canary_can_sing() -> None:
    assert shows_the_secret(f"… {ENCODED} …")


# Start-up


def test_run_imports_little(leasehold: Command) -> None:
    look = (
        "import sys; from leasehold.cli.app import call; code = call(['run', 'name', '--', 'true']);"
        "print(code, sorted({'rich', 'hiredis', 'redis', 'json', 'email'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", look], env=leasehold.environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == "0 []\n"


def test_the_command_is_installed() -> None:
    script = Path(LEASEHOLD[0]).with_name("leasehold")
    assert subprocess.run([script, "--version"], check=True, capture_output=True).stdout.startswith(b"leasehold ")
