"""Logging in by SASL, to a server that lets nobody in without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from tests.support.zookeeper_server import TICK, ZooKeeperServer, running_zookeeper

from leasehold import AsyncLeasehold, EngineError, Leasehold
from leasehold.wires.urls import Hidden
from leasehold.wires.zookeeper_messages import Malformed
from leasehold.wires.zookeeper_sasl import Exchange

TTL = 3.0
USERS = {"worker": "s3cret", "colleague": 'pass"w\\ord', "jürgen": "schlüssel", "工人": "秘密"}
CHALLENGE = b'realm="zk-sasl-md5",nonce="abc",qop="auth",charset=utf-8,algorithm=md5-sess'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    users = tmp_path_factory.mktemp("users") / "jaas.conf"
    escaped = {name: password.replace("\\", "\\\\").replace('"', '\\"') for name, password in USERS.items()}
    lines = "\n".join(f'  user_{name}="{password}"' for name, password in escaped.items())
    users.write_text(f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required\n{lines};\n}};\n")
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    java = (f"-Djava.security.auth.login.config={users}", "-Dfile.encoding=UTF-8")
    with running_zookeeper(settings=settings, java=java) as one:
        yield one


def url(server: ZooKeeperServer, login: str, auth: str = "sasl") -> str:
    return f"zookeeper://{login}127.0.0.1:{server.port}?tick={TICK}&auth={auth}"


@pytest.mark.parametrize("user", USERS)
def test_who_knows_the_password_is_let_in(server: ZooKeeperServer, user: str) -> None:
    login = f"{quote(user)}:{quote(USERS[user])}@"
    with Leasehold(url(server, login), namespace=login) as locks, locks.lock("a", ttl=TTL) as lease:
        lease.check()
        with Leasehold(url(server, login), namespace=login) as others:
            assert others.lock("a", ttl=TTL).try_acquire() is None


def test_what_one_user_made_no_other_may_touch(server: ZooKeeperServer) -> None:
    with (
        Leasehold(url(server, "worker:s3cret@"), namespace="theirs") as locks,
        locks.lock("a", ttl=TTL),
        Leasehold(url(server, "colleague:pass%22w%5Cord@"), namespace="theirs") as others,
        pytest.raises(EngineError, match="denies permission"),
    ):
        others.lock("a", ttl=TTL, wait=1).acquire()


def test_in_asyncio_too(server: ZooKeeperServer) -> None:
    async def take() -> int:
        locks = AsyncLeasehold(url(server, "worker:s3cret@"))
        async with locks.lock("b", ttl=TTL) as lease:
            token = lease.token
        await locks.close()
        return token

    assert asyncio.run(take()) > 0


@pytest.mark.parametrize(
    ("login", "auth", "why"),
    [
        ("worker:other-s3cret@", "sasl", "does not accept the log-in"),
        ("nobody:no-s3cret@", "sasl", "does not accept the log-in"),
        ("worker:s3cret@", "digest", "by SASL, without which it lets nobody in"),
        ("", "digest", "by SASL, without which it lets nobody in"),
    ],
    ids=["wrong password", "wrong user", "not by SASL", "not at all"],
)
def test_who_is_not_let_in_is_told_without_the_password(
    server: ZooKeeperServer, login: str, auth: str, why: str
) -> None:
    with Leasehold(url(server, login, auth)) as locks, pytest.raises(EngineError, match=why) as refusal:
        locks.lock("c", ttl=TTL, wait=1).acquire()
    assert "s3cret" not in str(refusal.value)
    assert not server.ephemerals()


def test_the_settings_of_kazoo_are_taken_over(server: ZooKeeperServer) -> None:
    login = {"mechanism": "DIGEST-MD5", "username": "worker", "password": "s3cret"}
    client = KazooClient(f"127.0.0.1:{server.port}", sasl_options=login)
    with Leasehold(client) as locks, locks.lock("d", ttl=20) as lease:
        lease.check()
        assert "s3cret" not in repr(locks)


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    exchange = Exchange(Hidden("worker:s3cret"))
    assert not exchange.accepts(b"rspauth="), "nothing was asked yet"
    answer = exchange.answer(CHALLENGE)
    assert b"s3cret" not in answer
    proof = answer.partition(b"response=")[2].partition(b",")[0]
    assert not exchange.accepts(b"rspauth=" + proof), "our own proof is none of the server's"
    assert not exchange.accepts(b"")


@pytest.mark.parametrize(
    "challenge",
    [
        b"", b"nonce", b'nonce="abc', b'nonce="abc"', b"=", b'nonce="\xff",algorithm=md5-sess',
        CHALLENGE.replace(b"md5-sess", b"sha-512"), CHALLENGE.replace(b'qop="auth"', b'qop="auth-conf"'),
    ],
)  # fmt: skip
def test_a_challenge_that_makes_no_sense_is_refused(challenge: bytes) -> None:
    with pytest.raises(Malformed):
        Exchange(Hidden("worker:s3cret")).answer(challenge)
