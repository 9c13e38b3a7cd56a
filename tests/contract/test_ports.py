"""Ports for servers: nobody uses them, no outgoing connection is given them, and no two processes share them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from leasehold.testing.ports import EACH, SECOND, Ports, free_ports

SHOWING = """
import sys
from leasehold.testing.ports import free_ports
print(*free_ports(40), flush=True)
sys.stdin.read()
"""


def test_no_outgoing_connection_is_given_such_a_port() -> None:
    outgoing_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if outgoing_from < 2 * SECOND + 1024:
        pytest.skip("outgoing connections have nearly all ports of this machine")
    assert all(1024 < port < port + SECOND < outgoing_from for port in free_ports(EACH - 1))


def test_processes_that_run_at_the_same_time_share_none() -> None:
    with contextlib.ExitStack() as running:
        given = free_ports(40)
        for _ in range(3):
            process = running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SHOWING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            assert process.stdout is not None
            given += map(int, process.stdout.readline().split())
    assert len(given) == 160
    assert len({*given, *(port + SECOND for port in given)}) == 320


def test_a_port_that_somebody_uses_is_passed_over() -> None:
    three = free_ports(3)
    ports = Ports([three])
    with socket.create_server(("127.0.0.1", three[0])), socket.create_server(("127.0.0.1", three[1] + SECOND)):
        assert [ports.free(1) for _ in range(3)] == [[three[2]]] * 3
    assert sorted(ports.free(3)) == three


def test_a_process_whose_ports_are_mostly_in_use_has_more() -> None:
    some = free_ports(2 * EACH)
    ports = Ports([some[:EACH], some[EACH:]])
    with listening_on(some[: EACH - 1]):
        assert sorted(ports.free(EACH + 1)) == sorted(some[EACH - 1 :])


def test_no_port_is_given_twice_to_who_asks_for_more_than_are_free() -> None:
    ten = free_ports(10)
    ports = Ports([ten])
    with listening_on(ten[:4]):
        assert sorted(ports.free(6)) == sorted(ten[4:])
        with pytest.raises(RuntimeError, match="in use"):
            ports.free(7)


def test_a_port_is_not_given_again_at_once_though_nobody_listens_there_yet() -> None:
    hundred = free_ports(EACH)
    ports = Ports([hundred])
    assert sorted(port for _ in range(EACH) for port in ports.free(1)) == sorted(hundred)


def test_a_process_that_has_used_up_its_ports_says_so_until_one_is_free() -> None:
    two = free_ports(2)
    ports = Ports([two])
    with listening_on(two):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="end some servers"):
                ports.free(1)
    assert ports.free(1) == [two[0]]


@contextlib.contextmanager
def listening_on(ports: Sequence[int]) -> Iterator[None]:
    with contextlib.ExitStack() as servers:
        for port in ports:
            servers.enter_context(socket.create_server(("127.0.0.1", port)))
        yield
