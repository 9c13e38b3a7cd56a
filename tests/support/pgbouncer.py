"""A pgbouncer of the tests' own before a PostgreSQL server: on a free port of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from tests.support.postgres_server import PASSWORD, PostgresServer, as_server_user, own_folder
from tests.support.programs import program_of

from leasehold.testing.ports import free_port

STARTS_WITHIN = 20.0


@contextlib.contextmanager
def running_pgbouncer(server: PostgresServer, mode: Literal["session", "transaction"]) -> Iterator[str]:
    """Run one for as long as the block; yields the URL by way of it."""
    program = program_of("pgbouncer")
    with own_folder() as folder:
        port = free_port()
        (folder / "users").write_text(f'"leasehold" "{PASSWORD}"\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\nleasehold = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {folder}/users\npool_mode = {mode}\n"
            "default_pool_size = 10\nmax_client_conn = 200\n"
        )
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*as_server_user(), str(program), str(folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip
        try:
            give_up_at = time.monotonic() + STARTS_WITHIN
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > give_up_at:
                    pytest.fail(f"pgbouncer did not start: {(folder / 'log').read_text()[-500:]}")
                time.sleep(0.02)
            yield server.url_at("127.0.0.1", port)
        finally:
            process.kill()
            process.wait(20)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
