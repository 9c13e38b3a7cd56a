"""``leasehold serve`` as people start it."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.cli.tool import Command, wait_for

from leasehold import Leasehold

TOKEN = "a-token-of-my-own-" + "x" * 20


def ask(url: str, token: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_it_prints_an_address_that_lets_in_and_ends_when_told(leasehold: Command, sqlite_url: str) -> None:
    running = leasehold.start("serve", "--port", "0")
    assert running.stdout is not None
    address = running.stdout.readline().strip()
    url, _, token = address.partition("#")
    assert url.startswith("http://127.0.0.1:")
    assert len(token) >= 43
    with Leasehold(sqlite_url) as locks, locks.lock("name", ttl=600):
        assert ask(f"{url}api/name?name=name", token)["holders"]
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        ask(f"{url}api/names", "x" * 43)
    refused.value.close()
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=20)
    assert (running.returncode, out) == (-signal.SIGTERM, "")
    assert "the address lets in: show it to nobody" in err
    assert token not in err


def test_ctrl_c_ends_it_without_a_word(leasehold: Command) -> None:
    running = leasehold.start("serve", "--port", "0", "--json", "--allow-break")
    assert running.stdout is not None
    told = json.loads(running.stdout.readline())
    assert set(told) == {"url", "port", "token", "can_break"}
    assert ask(f"{told['url']}api/overview", told["token"])["can_break"] is True
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=20) == ("", "")
    assert running.returncode == 0


def test_the_token_can_be_chosen(leasehold: Command) -> None:
    leasehold.environment["LEASEHOLD_SERVE_TOKEN"] = TOKEN
    running = leasehold.start("serve", "--port", "0", "--json")
    assert running.stdout is not None
    told = json.loads(running.stdout.readline())
    assert told["token"] == TOKEN
    second = leasehold("serve", "--port", str(told["port"]))
    assert second.returncode == 64
    assert "cannot listen on 127.0.0.1 port" in second.stderr
    assert TOKEN not in second.stdout + second.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "hint"),
    [
        (["--listen", "0.0.0.0"], {}, "others can reach 0.0.0.0: choose a token"),
        (["--listen", "0.0.0.0"], {"LEASEHOLD_SERVE_TOKEN": TOKEN}, "name this server with --host"),
        (["--listen", "192.0.2.1", "--host", "a.example"], {}, "choose a token"),
        (["--listen", "localhost"], {}, "--listen takes an IP address"),
        (["--host", "http://a.example/"], {}, "--host takes a name"),
        (["--every", "0.01"], {}, "--every takes from 0.2"),
        (["--port", "0"], {"LEASEHOLD_SERVE_TOKEN": "too-short"}, "at least 32 printable"),
    ],
)
def test_what_would_be_unsafe_is_refused(
    leasehold: Command, arguments: list[str], environment: dict[str, str], hint: str
) -> None:
    result = leasehold("serve", *arguments, **environment)
    assert (result.returncode, result.stdout) == (64, "")
    assert hint in result.stderr
    assert "too-short" not in result.stderr


@pytest.mark.parametrize("home", ["/dev/null", "/proc"])
def test_an_engine_that_can_never_be_used_ends_it_at_once(leasehold: Command, home: str) -> None:
    result = leasehold.in_process_of_its_own("serve", "--port", "0", LEASEHOLD_URL="", HOME=home, XDG_STATE_HOME="")
    assert (result.returncode, result.stdout) == (64, "")
    assert "cannot be used: " in result.stderr


def test_the_terminal_says_why_the_engine_cannot_be_reached_once_and_without_the_password(leasehold: Command) -> None:
    leasehold.environment["LEASEHOLD_URL"] = "redis://:canary-hunter-22@127.0.0.1:1/0"
    running = leasehold.start("serve", "--port", "0", "--every", "0.2", "--json")
    assert running.stdout is not None
    told = json.loads(running.stdout.readline())
    wait_for(lambda: not ask(f"{told['url']}api/overview", told["token"])["up"], "the first round has failed")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert err.count("cannot be reached") == 1
    assert "canary" not in err
