"""Ports for servers: nobody uses them, no outgoing connection is given them, and no two processes share them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.testing.ports import EACH, SECOND, free_port, free_ports

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
    first, second = free_ports(2)
    with socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", second + SECOND)):
        assert {first, second}.isdisjoint(free_ports(EACH))
    assert {first, second} <= set(free_ports(EACH))


def test_a_process_that_has_used_up_its_ports_says_so() -> None:
    with contextlib.ExitStack() as listening, pytest.raises(RuntimeError, match="end some of its servers"):
        for _ in range(EACH):
            listening.enter_context(socket.create_server(("127.0.0.1", free_port())))
