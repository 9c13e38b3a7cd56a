"""What can go wrong around one ZooKeeper server: it is away, it ends sessions, it refuses, it talks nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.driving import fresh_name
from tests.engines.zookeeper_help import expire
from tests.support.certificates import make_certificates
from tests.support.zookeeper_server import TICK, ZooKeeperServer, running_zookeeper

from leasehold import AsyncLeasehold, EngineError, EngineUnavailable, Leasehold, LeaseLost, NotAcquired, OutcomeUnknown
from leasehold.engines.zookeeper import ZooKeeperFamily
from leasehold.testing.ports import free_port
from leasehold.testing.proxy import Proxy, Way
from leasehold.worlds import boot_clock

TTL = 3.0


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with running_zookeeper() as one:
        yield one


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Leasehold]:
    with Leasehold(server.url) as one:
        yield one


def family_of(client: Leasehold) -> ZooKeeperFamily:
    family = client._family
    assert isinstance(family, ZooKeeperFamily)
    return family


# Away


def test_a_server_that_is_not_there_is_told_in_time() -> None:
    port = free_port()
    with Leasehold(f"zookeeper://worker:secret@127.0.0.1:{port}") as locks:
        since = time.monotonic()
        with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}") as caught:
            locks.lock("a", ttl=TTL, wait=0.5).acquire()
        assert time.monotonic() - since < 3
        assert "secret" not in str(caught.value)
        with pytest.raises(EngineUnavailable):
            locks.status("a")


def test_in_asyncio_too() -> None:
    async def take() -> None:
        locks = AsyncLeasehold(f"zookeeper://127.0.0.1:{free_port()}")
        with pytest.raises(EngineUnavailable):
            await locks.lock("a", ttl=TTL, wait=0.2).acquire()
        await locks.close()

    asyncio.run(take())


def test_a_lease_outlives_a_server_that_comes_back_in_time(server: ZooKeeperServer, client: Leasehold) -> None:
    """The connection is lost, the session is not."""
    lease = client.lock(fresh_name(), ttl=20.0).acquire()
    number = family_of(client).places.known(lease._held.want.holder)
    assert number is not None
    session = number.lease.id
    server.restart()
    lease.extend()
    assert number.lease.id == session, "it is the same session"
    lease.release()
    assert lease.released


def test_a_lease_ends_by_its_holders_own_clock_while_the_server_is_away(
    server: ZooKeeperServer, client: Leasehold
) -> None:
    lost = threading.Event()
    lease = client.lock(fresh_name(), ttl=TTL, on_lost=lambda _: lost.set()).acquire()
    server.kill()
    try:
        killed_at = boot_clock()
        assert lost.wait(TTL + 2)
        assert lease.valid_until <= killed_at + TTL
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(EngineError):
            client.lock(fresh_name(), ttl=TTL, wait=0.2).acquire()
    finally:
        server.start()
        server.wait()
    with client.lock(lease.name, ttl=TTL, wait=20) as successor:
        assert successor.token > lease.token


# Sessions that are over


def test_a_holder_whose_session_the_server_ended_is_told_at_its_next_renewal(
    server: ZooKeeperServer, client: Leasehold
) -> None:
    lost = threading.Event()
    lease = client.lock(fresh_name(), ttl=TTL, on_lost=lambda _: lost.set()).acquire()
    place = family_of(client).places.known(lease._held.want.holder)
    assert place is not None
    expire(server, place.lease)
    since = boot_clock()
    assert lost.wait(TTL)
    assert boot_clock() - since < TTL * 0.8, "not only when its own clock ran out"
    with pytest.raises(LeaseLost, match="no longer knows"):
        lease.check()
    with client.lock(lease.name, ttl=TTL, wait=0) as again:
        assert again.token > lease.token


@pytest.mark.parametrize("way", ["requests", "replies", "both"])
def test_one_who_is_cut_off_stops_believing_before_the_next_one_begins(server: ZooKeeperServer, way: str) -> None:
    """A silent connection, whichever way: the holder's clock and the server's know nothing of each other."""
    name, ways = fresh_name(), {"requests": ["requests"], "replies": ["replies"], "both": ["requests", "replies"]}[way]
    with Proxy("127.0.0.1", server.port) as proxy, Leasehold(server.url) as other:
        cut_off = Leasehold(server.url_at("127.0.0.1", proxy.port))
        lease = cut_off.lock(name, ttl=1.0).acquire()
        time.sleep(0.5)
        for one in ways:
            direction: Way = "requests" if one == "requests" else "replies"
            proxy.cut(direction)
        with other.lock(name, ttl=1.0, wait=20) as successor:
            granted_at = boot_clock()
            assert successor.token > lease.token
        assert lease.lost
        assert lease.valid_until <= granted_at
        proxy.heal()
        cut_off.close()


# Permission


def zookeeper_says(server: ZooKeeperServer, *words: str) -> str:
    """Use the administrator's own tool, which shares no code with the engine under test."""
    main = ["java", "-Xmx64m", "-cp", server.program, "org.apache.zookeeper.ZooKeeperMain"]
    command = [*main, "-server", f"127.0.0.1:{server.port}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def test_without_permission_nothing_is_left_and_the_error_says_what_to_do(server: ZooKeeperServer) -> None:
    host = f"127.0.0.1:{server.port}/closed?tick={TICK}"
    owner = Leasehold(f"zookeeper://owner:first-secret@{host}", namespace="theirs")
    with owner, owner.lock("a", ttl=TTL) as lease:
        for login in ("", "somebody:second-secret@"):
            with Leasehold(f"zookeeper://{login}{host}", namespace="theirs") as stranger:
                since = time.monotonic()
                with pytest.raises(EngineError, match="denies permission") as caught:
                    stranger.lock("a", ttl=TTL, wait=1).acquire()
                assert "user:password" in str(caught.value)
                assert "secret" not in str(caught.value)
                assert time.monotonic() - since < 3
                with pytest.raises(EngineError, match="denies permission"):
                    stranger.lock("b", ttl=TTL, wait=1).acquire()
                with pytest.raises(EngineError):
                    stranger.force_release("a", because="a test")
        with Leasehold(f"zookeeper://owner:first-secret@{host}", namespace="theirs") as colleague:
            assert colleague.lock("a", ttl=TTL).try_acquire() is None
        lease.check()
    assert not [path for path in server.ephemerals() if path.startswith("/closed/")]


def test_a_path_that_is_closed_to_us_is_told(server: ZooKeeperServer) -> None:
    zookeeper_says(server, "create", "/walled", "x", "world:anyone:r")
    with Leasehold(f"zookeeper://127.0.0.1:{server.port}/walled?tick={TICK}") as locks:
        with pytest.raises(EngineError, match="denies permission"):
            locks.lock("a", ttl=TTL, wait=1).acquire()
        assert locks.status("a") is None


def test_a_chroot_is_made_and_keeps_apart(server: ZooKeeperServer, client: Leasehold) -> None:
    name = fresh_name()
    url = f"zookeeper://127.0.0.1:{server.port}/apps/one%20more?tick={TICK}"
    with Leasehold(url) as below, below.lock(name, ttl=TTL), client.lock(name, ttl=TTL, wait=0):
        assert list(below.names()) == [name]
        assert any(path.startswith("/apps/one more/leasehold/") for path in server.ephemerals())


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a server's key with its certificate in one file."""
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    (folder / "both.pem").write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def secure_server(certificates: Path) -> Iterator[ZooKeeperServer]:
    settings = {
        "secureClientPort": str(free_port()),
        "ssl.clientAuth": "none",
        "ssl.keyStore.location": str(certificates / "both.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(certificates / "ca.pem"),
        "ssl.trustStore.type": "PEM",
    }
    java = ("-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",)
    with running_zookeeper(settings=settings, java=java) as one:
        yield one


@pytest.mark.parametrize("login", ["", "worker:secret@"])
def test_tls_is_spoken_and_the_certificate_checked(
    secure_server: ZooKeeperServer, certificates: Path, login: str
) -> None:
    host = f"127.0.0.1:{secure_server.settings['secureClientPort']}"
    name = fresh_name()
    with Leasehold(f"zookeepers://{login}{host}?tick={TICK}&ca={certificates}/ca.pem", namespace=login) as locks:
        leases = [locks.lock(f"{name}-{number}", ttl=1.0).acquire() for number in range(20)]
        waiting = threading.Thread(target=lambda: locks.lock(f"{name}-0", ttl=1.0, wait=10).acquire().release())
        waiting.start()
        time.sleep(1.5)
        for lease in leases:
            lease.check()
            lease.release()
        waiting.join()
    with (
        Leasehold(f"zookeepers://{login}{host}?tick={TICK}", namespace=login) as distrusting,
        pytest.raises(EngineUnavailable, match="certificate"),
    ):
        distrusting.lock(name, ttl=TTL, wait=0.5).acquire()
    with (
        Leasehold(f"zookeeper://{host}?tick={TICK}") as plain,
        pytest.raises(EngineUnavailable),
    ):
        plain.lock(name, ttl=TTL, wait=0.5).acquire()


def test_tls_in_asyncio(secure_server: ZooKeeperServer, certificates: Path) -> None:
    host = f"127.0.0.1:{secure_server.settings['secureClientPort']}"

    async def take() -> None:
        locks = AsyncLeasehold(f"zookeepers://{host}?tick={TICK}&ca={certificates}/ca.pem")
        async with locks.lock(fresh_name(), ttl=TTL) as lease:
            lease.check()
        await locks.close()

    asyncio.run(take())


# Nonsense


GREETING = bytes.fromhex("00000025" + "00000000" + "00001770" + "0000000000000007" + "00000010" + "00" * 16 + "00")
CREATED = bytes.fromhex("00000014" + "00000001" + "0000000000000009" + "00000000" + "00000000")


@pytest.mark.parametrize(
    "answers",
    [
        [b""],
        [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        [b"\xff\xff\xff\xff"],
        [b"\0\0\0\0"],
        [GREETING, b"\0\0\0\0"],
        [GREETING, b"\x7f\xff\xff\xff"],
        [GREETING, CREATED],
        [GREETING, CREATED.replace(b"\0\0\0\x01", b"\0\0\0\x05")],
        [GREETING, CREATED + CREATED.replace(b"\0\0\0\x01", b"\0\0\0\x02", 1)],
    ],
    ids=range(9),
)
def test_nonsense_is_never_taken_for_a_grant(answers: list[bytes]) -> None:
    """Whatever a hostile or broken server says, at whatever step: an error of ours, in time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        for answer in answers:
                            connection.recv(65536)
                            connection.sendall(answer)
                        connection.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        locks = Leasehold(f"zookeeper://127.0.0.1:{listener.getsockname()[1]}", request_timeout=0.5)
        since = time.monotonic()
        with pytest.raises((EngineError, EngineUnavailable, OutcomeUnknown)) as caught:
            locks.lock("a", ttl=3.0, wait=0.3).acquire()
        assert not isinstance(caught.value, NotAcquired)
        assert time.monotonic() - since < 3
        listener.shutdown(socket.SHUT_RDWR)
    locks.close()
