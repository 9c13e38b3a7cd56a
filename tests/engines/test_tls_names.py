"""A certificate that is good but for another host: no engine says a word to who shows it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.certificates import make_certificates

from leasehold import AsyncLeasehold, EngineError, Leasehold

URLS = {
    "redis": "rediss://u:secret@{at}?ca={ca}",
    "cluster": "rediss+cluster://u:secret@{at}?ca={ca}",
    "redlock": "redlocks://:secret@{at},{second},{third}?ca={ca}",
    "etcd": "etcds://u:secret@{at}?ca={ca}",
    "zookeeper": "zookeepers://u:secret@{at}?ca={ca}",
    "consul": "consuls://{at}?ca={ca}&token=secret",
}


class Listener:
    """Shows its certificate to whoever comes, and keeps what it is told."""

    def __init__(self, certificates: Path) -> None:
        self.told: list[bytes] = []
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._context.set_alpn_protocols(["h2"])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                accepted.settimeout(1.0)
                with contextlib.suppress(OSError), self._context.wrap_socket(accepted, server_side=True) as secured:
                    self.told.append(secured.recv(65536))
                accepted.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """They are for 127.0.0.1, and for no name."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def listeners(certificates: Path) -> Iterator[list[Listener]]:
    """As many as a quorum needs: with fewer it would not be waited for."""
    three = [Listener(certificates) for _ in range(3)]
    yield three
    for one in three:
        one.close()


def blocking(url: str) -> None:
    with Leasehold(url, request_timeout=1.0) as locks:
        locks.lock("a", ttl=30, wait=0).acquire()


def in_asyncio(url: str) -> None:
    async def take() -> None:
        async with AsyncLeasehold(url, request_timeout=1.0) as locks:
            await locks.lock("a", ttl=30, wait=0).acquire()

    asyncio.run(take())


@pytest.mark.parametrize("use", [blocking, in_asyncio])
@pytest.mark.parametrize("engine", URLS)
def test_nothing_is_said_to_another_host(
    engine: str, use: Callable[[str], None], listeners: list[Listener], certificates: Path
) -> None:
    def url(host: str) -> str:
        first, second, third = (f"{host}:{one.port}" for one in listeners)
        return URLS[engine].format(at=first, second=second, third=third, ca=certificates / "ca.pem")

    with pytest.raises(EngineError):
        use(url("localhost"))
    assert not any(word for one in listeners for word in one.told), "it was told something"
    with pytest.raises(EngineError):
        use(url("127.0.0.1"))
    assert any(word for one in listeners for word in one.told), "to the host of the certificate it talks"
