"""Users, permissions and TLS."""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.driving import fresh_name, want
from tests.engines.etcd_help import Driven, counted, family_at
from tests.support.certificates import make_certificates
from tests.support.etcd_server import EtcdNode, encoded, running_etcd

from leasehold import EngineError, EngineUnavailable, Leasehold
from leasehold.core.engine import Busy, Grant

SECRET = "worker-secret"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    """Log-ins last one second there."""
    settings = ["--auth-token-ttl=1", "--bcrypt-cost=4"]
    with running_etcd(tmp_path_factory.mktemp("guarded"), settings=settings) as node:
        node.enable_users(prefix="leasehold/")
        yield node


def url_for(node: EtcdNode, credentials: str) -> str:
    return f"etcd://{credentials}@127.0.0.1:{node.port}"


def test_a_user_with_permission_can_do_everything(guarded: EtcdNode) -> None:
    with Leasehold(url_for(guarded, f"worker:{SECRET}")) as client:
        name = fresh_name()
        lease = client.lock(name, ttl=10).acquire()
        served: list[int] = []

        def wait() -> None:
            with client.lock(name, ttl=10, wait=20) as next_lease:
                served.append(next_lease.token)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        status = client.status(name)
        assert status is not None
        assert len(status.waiters) == 1
        lease.release()
        waiting.join(20)
        assert served
        assert list(client.names()) == []


def test_a_log_in_that_ran_out_is_renewed(guarded: EtcdNode) -> None:
    """Simple tokens end when they are not used; nothing was carried out then, so asking again is safe."""
    engine = Driven(family_at(url_for(guarded, f"worker:{SECRET}")))
    name = fresh_name()
    engine.take(held := want(name, ttl=60))
    engine.take(waiting := want(name, ttl=60), patience=60.0)
    time.sleep(2.5)
    requests = counted(engine.family)
    assert isinstance(engine.take(waiting, patience=60.0), Busy)
    assert [one for one in requests.made if one != "LeaseKeepAlive"] == ["Txn", "Authenticate", "Txn"]
    time.sleep(2.5)
    timer = threading.Timer(1.0, lambda: engine.release(name, held.holder))
    timer.start()
    since = time.monotonic()
    while not isinstance(answer := engine.take(waiting, patience=60.0), Grant):
        engine.wait(waiting, 10.0)
        assert time.monotonic() - since < 20
    timer.join()
    assert answer.token > 0
    engine.close()


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        ("worker:wr0ng", "does not accept the user or the password"),
        ("nobody:wr0ng", "does not accept the user or the password"),
        ("guest:guest-secret", "denies permission.*etcdctl role grant-permission"),
    ],
)
def test_who_is_not_let_in_learns_what_to_do(guarded: EtcdNode, credentials: str, says: str) -> None:
    with Leasehold(url_for(guarded, credentials)) as client:
        for use in (lambda: client.lock("a", ttl=5, wait=0).acquire(), lambda: client.status("a")):
            with pytest.raises(EngineError, match=says) as caught:
                use()
            assert not isinstance(caught.value, EngineUnavailable)
            assert credentials.partition(":")[2] not in f"{caught.value!r} {client!r} {client._family!r}"


def test_a_missing_log_in_is_asked_for(guarded: EtcdNode) -> None:
    with Leasehold(guarded.url) as client, pytest.raises(EngineError, match="user:password@host"):
        client.lock("a", ttl=5, wait=0).acquire()


def test_a_log_in_where_there_are_no_users(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as node, Leasehold(url_for(node, f"worker:{SECRET}")) as client:
        with pytest.raises(EngineError, match="has no users") as caught:
            client.lock("a", ttl=5, wait=0).acquire()
        assert SECRET not in str(caught.value)


def test_a_full_database_says_how_to_make_room(tmp_path: Path) -> None:
    """Etcd takes no writes then, and goes on when there is room again; what is held can still be given back."""
    with running_etcd(tmp_path, settings=["--quota-backend-bytes=4194304"]) as node, Leasehold(node.url) as client:
        lease = client.lock("held", ttl=20).acquire()
        with pytest.raises(urllib.error.HTTPError) as refused:
            for number in range(20):
                node.ask("/v3/kv/put", {"key": encoded(f"load-{number}"), "value": encoded(b"x" * 1_000_000)})
        refused.value.close()
        with pytest.raises(EngineError, match=r"is full.*alarm disarm") as caught:
            client.lock("another", ttl=20, wait=5).acquire()
        assert not isinstance(caught.value, EngineUnavailable)
        lease.check()
        lease.release()


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate for 127.0.0.1 and a client's."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[EtcdNode]:
    """It wants to see a client's certificate, too."""
    settings = [
        f"--cert-file={certificates}/server.pem",
        f"--key-file={certificates}/server.key",
        f"--trusted-ca-file={certificates}/ca.pem",
        "--client-cert-auth",
    ]
    with running_etcd(tmp_path_factory.mktemp("secure"), scheme="https", settings=settings) as node:
        yield node


def test_tls_with_certificates_on_both_sides(secure: EtcdNode, certificates: Path) -> None:
    url = f"etcds://127.0.0.1:{secure.port}?ca={certificates}/ca.pem&cert={certificates}/client.pem&key={certificates}/client.key"
    with Leasehold(url) as client, client.lock("a", ttl=5, wait=20) as lease:
        assert lease.token > 0
        assert client.facts.address == f"etcds://127.0.0.1:{secure.port}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("?ca={0}/other.pem", "not signed by an authority that we trust"),
        ("", "not signed by an authority that we trust"),
        ("?ca={0}/ca.pem", "127.0.0.1"),  # lacks a certificate of its own; servers merely hang up
    ],
)
def test_who_cannot_be_trusted_is_not_talked_to(secure: EtcdNode, certificates: Path, options: str, says: str) -> None:
    secure_is_up(secure, certificates)
    url = f"etcds://127.0.0.1:{secure.port}{options.format(certificates)}"
    with Leasehold(url) as client:
        since = time.monotonic()
        with pytest.raises(EngineUnavailable, match=says):
            client.lock("a", ttl=5, wait=0).acquire()
        assert time.monotonic() - since < 4


def test_a_certificate_for_another_host_is_refused(secure: EtcdNode, certificates: Path) -> None:
    secure_is_up(secure, certificates)
    url = f"etcds://localhost:{secure.port}?ca={certificates}/ca.pem"
    with Leasehold(url) as client, pytest.raises(EngineUnavailable, match="another host name"):
        client.lock("a", ttl=5, wait=0).acquire()


def test_plain_talk_to_a_server_with_tls(secure: EtcdNode, certificates: Path) -> None:
    secure_is_up(secure, certificates)
    with Leasehold(secure.url) as client, pytest.raises(EngineError):
        client.lock("a", ttl=5, wait=0.5).acquire()


def secure_is_up(secure: EtcdNode, certificates: Path) -> None:
    test_tls_with_certificates_on_both_sides(secure, certificates)
