"""A pgbouncer of the tests' own before a PostgreSQL server: on a free port of the loopback, ended by process id."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Literal

from tests.support.postgres_server import PASSWORD, PostgresServer, as_server_user
from tests.support.programs import program_of
from tests.support.server_process import ServerProcess, memory_folder

from leasehold.testing.ports import free_port


@contextlib.contextmanager
def running_pgbouncer(server: PostgresServer, mode: Literal["session", "transaction"]) -> Iterator[str]:
    """Run one for as long as the block; yields the URL by way of it."""
    program = program_of("pgbouncer")
    with memory_folder() as folder:
        port = free_port()
        (folder / "users").write_text(f'"leasehold" "{PASSWORD}"\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\nleasehold = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {folder}/users\npool_mode = {mode}\n"
            "default_pool_size = 10\nmax_client_conn = 200\n"
        )
        pooler = ServerProcess("pgbouncer", folder / "log")
        try:
            pooler.launch([*as_server_user(), str(program), str(folder / "pgbouncer.ini")], folder)
            pooler.wait_until(lambda: _answers(port))
            yield server.url_at("127.0.0.1", port)
        finally:
            pooler.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
