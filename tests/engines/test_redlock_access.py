"""Getting into the servers of a quorum: TLS, Unix sockets, passwords and users with few rights; and who is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.redis_help import WORLDS
from tests.engines.test_redlock_faults import tokens
from tests.support.certificates import make_certificates
from tests.support.redis_server import RedisServer, running
from tests.support.redlock_servers import running_quorum

from leasehold import EngineError, Leasehold
from leasehold.engines.redlock import initialise
from leasehold.testing.ports import free_port
from leasehold.wires.redis_replies import NEEDED_RIGHTS

PASSWORD = "canary-Zq8"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "IP:127.0.0.1,DNS:localhost")


@contextlib.contextmanager
def different_servers(certificates: Path, folder: Path) -> Iterator[list[str]]:
    """One behind TLS and a host name, one behind a Unix socket, and one with a user who may do little."""
    port, path = free_port(), folder / "socket"
    key = ("--tls-cert-file", str(certificates / "server.pem"), "--tls-key-file", str(certificates / "server.key"))
    listens = ("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(certificates / "ca.pem"))
    rights = ["on", f">{PASSWORD}", *NEEDED_RIGHTS.split()]
    with contextlib.ExitStack() as stack:
        for name, settings in (("tls", (*key, *listens)), ("unix", ("--unixsocket", str(path)))):
            (folder / name).mkdir()
            stack.enter_context(running(RedisServer("redis", folder / name, *settings)))
        (folder / "guarded").mkdir()
        guarded = stack.enter_context(running(RedisServer("redis", folder / "guarded")))
        guarded.ask("ACL", "SETUSER", "leases", *rights)
        yield [
            f"rediss://localhost:{port}?ca={certificates}/ca.pem",
            f"redis+unix://{path}",
            f"redis://leases:{PASSWORD}@127.0.0.1:{guarded.port}/2",
        ]


@pytest.mark.parametrize("world", WORLDS)
def test_servers_may_differ(certificates: Path, tmp_path: Path, world: str) -> None:
    with different_servers(certificates, tmp_path) as urls:
        initialise(urls)
        found = tokens(urls, world, 5)
        assert found == sorted(set(found))
        assert PASSWORD not in repr(Leasehold(urls)) + Leasehold(urls).facts.address
        for left_out in range(3):  # every one of them does its part
            others = [url for index, url in enumerate(urls) if index != left_out]
            found += tokens([*others, "redis://127.0.0.1:1"], world, 2)
        assert found == sorted(set(found))


@pytest.mark.parametrize("world", WORLDS)
def test_who_is_not_let_in_is_told_why(world: str) -> None:
    with running_quorum(3) as quorum:
        first, second, third = quorum.servers
        second.ask("CONFIG", "SET", "requirepass", PASSWORD)
        third.ask("REPLICAOF", "127.0.0.1", first.port)
        with pytest.raises(EngineError) as caught:
            tokens(quorum.url, world, 1, wait=0.5)
        said = str(caught.value)
        assert "it wants a password" in said
        assert "leads to a replica" in said


@pytest.mark.parametrize("world", WORLDS)
def test_a_node_of_a_cluster_is_no_member(tmp_path: Path, world: str) -> None:
    with (
        running_quorum(2, initialised=False) as two,
        running(RedisServer("redis", tmp_path, "--cluster-enabled", "yes")) as node,
    ):
        two.servers[0].kill()
        urls = [*(server.url for server in two.servers), node.url]
        with pytest.raises(EngineError, match="is a node of a cluster"):
            tokens(urls, world, 1, wait=0.3)
