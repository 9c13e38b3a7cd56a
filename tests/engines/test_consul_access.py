"""Tokens, permissions and TLS."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.consul_help import Driven, family_at
from tests.engines.driving import WORLDS, World, fresh_name, want
from tests.support.certificates import make_certificates
from tests.support.consul_server import LEAST_TTL, ConsulNode, running_consul

from leasehold import EngineError, EngineUnavailable, Leasehold
from leasehold.core.engine import Grant

RULES = 'key_prefix "leasehold/" { policy = "write" } session_prefix "" { policy = "write" }'
READ_ONLY = 'key_prefix "leasehold/" { policy = "read" } session_prefix "" { policy = "write" }'


@pytest.fixture(scope="module")
def guarded() -> Iterator[ConsulNode]:
    with running_consul(ConsulNode.close_to_strangers) as node:
        yield node


def url_for(node: ConsulNode, token: str) -> str:
    return f"{node.url}&token={token}"


def test_a_token_with_the_rules_of_the_docs_can_do_everything(guarded: ConsulNode) -> None:
    with Leasehold(url_for(guarded, guarded.let_in(RULES))) as locks:
        name, served = fresh_name(), list[int]()
        lease = locks.lock(name, ttl=10, lock_delay=1).acquire()

        def wait() -> None:
            with locks.lock(name, ttl=10, wait=20) as next_lease:
                served.append(next_lease.token)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        status = locks.status(name)
        assert status is not None
        assert len(status.waiters) == 1
        lease.extend(20)
        lease.release()
        waiting.join(20)
        assert served
        assert list(locks.names()) == []
        assert locks.force_release(name, because="a test") > served[0]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (None, "does not know the token of the URL"),
        ("", "denies permission.*key_prefix"),
        (READ_ONLY, "denies permission.*session_prefix"),
    ],
    ids=["unknown", "nothing", "read only"],
)
def test_who_is_not_let_in_learns_what_to_do(guarded: ConsulNode, world: World, rules: str | None, says: str) -> None:
    token = "5a4ce5f2-9ad1-4d3b-8f70-00000000dead" if rules is None else guarded.let_in(rules)
    engine = Driven(family_at(url_for(guarded, token)), world)
    before = guarded.keys()
    since = time.monotonic()
    for patience in (None, 5.0):
        with pytest.raises(EngineError, match=says) as caught:
            engine.take(want("a"), patience=patience)
        assert not isinstance(caught.value, EngineUnavailable), "trying again would not help"
        assert token not in str(caught.value)
    assert time.monotonic() - since < 5
    engine.close()
    assert guarded.keys() == before


def test_a_token_that_is_missing_is_asked_for(guarded: ConsulNode) -> None:
    with Leasehold(guarded.url) as locks, pytest.raises(EngineError, match="denies permission"):
        locks.lock("a", ttl=10).acquire()


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Path) -> Iterator[ConsulNode]:
    """It wants to see a client's certificate, too."""
    with running_consul(lambda node: node.listen_with_tls(certificates)) as node:
        yield node


def secure_url(node: ConsulNode, **files: Path | str) -> str:
    options = "".join(f"&{name}={path}" for name, path in files.items())
    return f"consuls://127.0.0.1:{node.tls_port}/?least_ttl={LEAST_TTL}{options}"


@pytest.mark.parametrize("world", WORLDS)
def test_tls_with_certificates_of_both_sides(secure: ConsulNode, certificates: Path, world: World) -> None:
    files = {"ca": certificates / "ca.pem", "cert": certificates / "client.pem", "key": certificates / "client.key"}
    engine = Driven(family_at(secure_url(secure, **files)), world)
    holder, waiter = want(name := fresh_name()), want(name)
    assert isinstance(engine.take(holder), Grant)
    engine.take(waiter, patience=10.0)
    assert engine.wait(waiter, 0.3) >= 0.29
    for one in range(200):  # more than fits into one record
        engine.take(want(f"{name}-{one}", mode="shared"))
    assert sum(one.startswith(name) for one in engine.names(after=None, limit=1000)) == 201
    assert engine.release(name, holder.holder)
    engine.wait(waiter, 5.0)
    assert isinstance(engine.take(waiter, patience=10.0), Grant)
    engine.release(name, waiter.holder)
    engine.close()
    secure.destroy_sessions()


@pytest.mark.parametrize("world", WORLDS)
def test_a_certificate_that_is_not_accepted_is_said(secure: ConsulNode, certificates: Path, world: World) -> None:
    engine = Driven(family_at(secure_url(secure, ca=certificates / "other.pem")), world)
    since = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"certificate is not accepted.*ca=") as caught:
        engine.take(want("a"))
    assert f"127.0.0.1:{secure.tls_port}" in str(caught.value)
    assert time.monotonic() - since < 5
    engine.close()


def test_a_client_without_its_certificate_is_turned_away(secure: ConsulNode, certificates: Path) -> None:
    engine = Driven(family_at(secure_url(secure, ca=certificates / "ca.pem")), seconds=2.0)
    with pytest.raises(EngineUnavailable):
        engine.take(want("a"))
    engine.close()
