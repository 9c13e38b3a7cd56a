"""The live view at a real terminal, with more names than fit on it, and what its keys do."""

from __future__ import annotations

import io
import re
import secrets

import pytest
from rich.console import Console
from tests.cli.conftest import Server
from tests.cli.test_terminal import Shell, shell
from tests.cli.tool import Command, wait_for

from leasehold import HolderStatus, Leasehold, NameStatus
from leasehold.cli.shown import one_line_each

__all__ = ["shell"]


def test_keys_search_move_and_show_details(shell: Shell, sqlite_url: str) -> None:
    with Leasehold(sqlite_url, label="filler") as locks:
        leases = [locks.lock(f"name-{number:03}", ttl=600).acquire() for number in range(300)]
        shell.run("leasehold status --watch=0.3")
        shell.expect(r"300 names · 300 holders · 0 waiters")
        shell.expect(r"1-35 of 300 by attention")
        shell.type("\x1b[F")
        shell.expect(r"name-299")
        shell.expect(r"281-300 of 300")
        shell.type("/NAME-12")
        shell.expect(r"10 match 'NAME-12'")
        shell.type("3\r")
        shell.expect(r"1-1 of 1 by attention")
        shell.type("\r")
        shell.expect(r"name-123\S* +held")
        shell.expect(r"holder +filler@")
        shell.expect(r"Esc back   q quit")
        leases[123].release()
        shell.expect(r"name-123\S* +free; its latest token was \d+")
        shell.type("\x1b")
        shell.expect(r"No name matches; Esc shows all")
        shell.type("\x1b")
        shell.expect(r"1-35 of 299")
        shell.type("o")
        shell.expect(r"by name")
        shell.type("w")
        shell.expect(r"0 match waited for")
        shell.type("q")
        assert shell.code() == 0
        shell.run("echo echo is back")  # the terminal is as it was
        shell.expect("echo is back")


def test_an_engine_that_went_is_told_and_its_return_is_seen(shell: Shell, server: Server) -> None:
    name = f"on-redis-{secrets.token_hex(4)}"
    with Leasehold(server.url) as locks, locks.lock(name, ttl=600):
        shell.run(f"leasehold status --watch=0.3 --on {server.url} --only 'on-redis*'")
        shell.expect(name)
        server.freeze()
        shell.expect("did not answer in time")
        server.thaw()
        shell.expect(name)
        shell.type("\x03")
        assert shell.code() == 0


@pytest.mark.parametrize("order", ["attention", "name"])
def test_what_matters_comes_first(leasehold: Command, sqlite_url: str, order: str) -> None:
    with Leasehold(sqlite_url) as locks:
        leases = [locks.lock(name, ttl=600).acquire() for name in ("a", "b", "c")]
        leasehold.start("run", "c", "--wait", "60", "--", "true")
        wait_for(lambda: (status := locks.status("c")) is not None and status.waiters, "it waits")
        _, *lines = leasehold("status", "--order", order).stdout.splitlines()
        assert [line.split()[0] for line in lines] == (["c", "a", "b"] if order == "attention" else ["a", "b", "c"])
        _, *lines = leasehold("status", "--waited").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["c"]
        assert leasehold("status", "--only", "nothing").stdout == "No name matches.\n"
        _, *lines = leasehold("status", "--only", "B").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["b"]
        for lease in leases:
            lease.release()


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (110, ["NAME", "HOLDER", "TOKEN", "HELD FOR", "TIME LEFT", "WAITERS"]),
        (75, ["NAME", "HOLDER", "HELD FOR", "TIME LEFT", "WAITERS"]),
        (58, ["NAME", "HOLDER", "TIME LEFT", "WAITERS"]),
    ],
)
def test_a_narrow_terminal_leaves_numbers_out_rather_than_cut_them(width: int, headings: list[str]) -> None:
    holder = HolderStatus(1794814501061691, "exclusive", "worker@host-of-a-long-name:13393", 72.0, 26.5)
    statuses = [(NameStatus(f"a-long-name/{'x' * 40}", holder.token, (holder,), ()), "")]
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    with screen.capture() as captured:
        screen.print(one_line_each(statuses, width=width))
    [top, line] = captured.get().splitlines()
    assert re.split(r" {2,}", top.strip()) == headings
    assert len(line) <= width
    assert ("1794814501061691" in line, "1m 12s" in line, "26.5s" in line) == (width > 100, width > 60, True)


def test_a_hostile_name_cannot_steer_the_search_line(shell: Shell) -> None:
    shell.run("leasehold status --watch=0.3")
    shell.expect("Nothing is held")
    shell.type("/a\x1b[31m\x00b")
    shell.expect(r"0 match 'ab'|/ab")
    shell.type("\x03")
    assert shell.code() == 0
