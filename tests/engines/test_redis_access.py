"""Getting in: passwords, ACLs, TLS, Unix sockets, Sentinel, one node of a cluster; and what correctness needs."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from tests.engines.redis_help import ENGINES, WORLDS, Caller, calling, family_at, fresh_name, want
from tests.engines.test_redis_target import CANARY, assert_hidden
from tests.support.certificates import make_certificates
from tests.support.redis_server import RedisServer, Sentinel, running

from leasehold.core.engine import Busy, Grant
from leasehold.errors import EngineError, EngineUnavailable, GuaranteeTooWeak, GuaranteeWarning
from leasehold.testing.ports import free_port
from leasehold.wires.redis_replies import NEEDED_RIGHTS, ErrorReply, error_from


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=ENGINES)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that wants a password; `leases` is a user with just the permissions that the error message names."""
    server = RedisServer(request.param, tmp_path_factory.mktemp("guarded"), "--requirepass", "p@ss/word")
    with running(server), contextlib.closing(server.client()) as admin:
        admin("AUTH", "p@ss/word")
        rights = NEEDED_RIGHTS.split()
        lacks = {
            "leases": "",
            "no-keys": "~lh:*",
            "no-channels": "&lh:*",
            "no-time": "+time",
            "no-scripts": "+@scripting",
        }
        for user, lacking in lacks.items():
            granted = [right for right in rights if right != lacking]
            admin("ACL", "SETUSER", user, "on", f">{CANARY}", "resetchannels", *granted)
        yield server


def exercise(engine: Caller) -> None:
    """The whole life of a contended lease."""
    name = fresh_name()
    first, second = want(name), want(name)
    token = engine.take(first).token
    assert isinstance(engine.take(second, patience=5.0), Busy)
    assert engine.release(name, first.holder) is True
    assert engine.wait(second, 5.0) < 1.0
    assert engine.take(second, patience=5.0).token > token
    assert engine.status(name).holders[0].about == second.about
    assert engine.release(name, second.holder) is True


def test_passwords_and_users_open_the_door(guarded: RedisServer, world: str) -> None:
    for credentials in (":p%40ss%2Fword", "default:p%40ss%2Fword", f"leases:{CANARY}"):
        with calling(family_at(f"redis://{credentials}@127.0.0.1:{guarded.port}"), world) as engine:
            exercise(engine)


@pytest.mark.parametrize(
    ("credentials", "error", "why"),
    [
        ("", EngineUnavailable, "wants a password"),
        (f":{CANARY}@", EngineUnavailable, "does not accept this user"),
        (f"nobody:{CANARY}@", EngineUnavailable, "does not accept this user"),
        (f"no-keys:{CANARY}@", EngineError, "lacks a permission"),
        (f"no-channels:{CANARY}@", EngineError, "lacks a permission"),
        (f"no-time:{CANARY}@", EngineError, "lacks a permission"),
        (f"no-scripts:{CANARY}@", EngineError, "lacks a permission"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    guarded: RedisServer, world: str, credentials: str, error: type[Exception], why: str
) -> None:
    with calling(family_at(f"redis://{credentials}127.0.0.1:{guarded.port}"), world) as engine:
        with pytest.raises(error, match=why) as told:
            engine.take(want("n"))
        assert type(told.value) is error
        assert_hidden(told.value)


def test_a_database_that_is_not_there_is_told(guarded: RedisServer, world: str) -> None:
    family = family_at(f"redis://:p%40ss%2Fword@127.0.0.1:{guarded.port}/99")
    with calling(family, world) as engine, pytest.raises(EngineError, match="database"):
        engine.take(want("n"))


def test_databases_are_apart(guarded: RedisServer, world: str) -> None:
    url = f"redis://:p%40ss%2Fword@127.0.0.1:{guarded.port}"
    name = fresh_name()
    with calling(family_at(url), world) as one, calling(family_at(f"{url}/3"), "blocking") as other:
        assert isinstance(one.take(want(name)), Grant)
        assert isinstance(other.take(want(name)), Grant)


def test_client_objects_open_the_door(guarded: RedisServer, world: str) -> None:
    sync = redis.Redis(port=guarded.port, username="leases", password=CANARY)
    not_sync = redis.asyncio.Redis(port=guarded.port, password="p@ss/word", db=2)
    for client in (sync, not_sync):
        with calling(family_at(client), world) as engine:
            exercise(engine)
    sync.close()


def test_a_unix_socket(tmp_path: Path, world: str) -> None:
    path = tmp_path / "s"
    with (
        running(RedisServer("redis", tmp_path, "--unixsocket", str(path))),
        calling(family_at(f"redis+unix://{path}?db=1"), world) as engine,
    ):
        exercise(engine)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate of its own for the loopback address."""
    return make_certificates(tmp_path_factory.mktemp("certificates"), "IP:127.0.0.1,DNS:localhost")


@pytest.fixture(scope="module")
def tls_port(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server that speaks TLS and wants a certificate from its clients."""
    port = free_port()
    files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
    settings = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(certificates / file))]
    server = RedisServer("redis", tmp_path_factory.mktemp("tls"), "--tls-port", str(port), *settings)
    with running(server):
        yield port


def test_tls_with_certificates_checked_on_both_sides(certificates: Path, tls_port: int, world: str) -> None:
    files = f"ca={certificates}/ca.pem&cert={certificates}/server.pem&key={certificates}/server.key"
    for host in ("127.0.0.1", "localhost"):
        with calling(family_at(f"rediss://{host}:{tls_port}?{files}"), world) as engine:
            exercise(engine)
    client = redis.Redis(
        port=tls_port,
        ssl=True,
        ssl_ca_certs=str(certificates / "ca.pem"),
        ssl_certfile=str(certificates / "server.pem"),
        ssl_keyfile=str(certificates / "server.key"),
    )
    with calling(family_at(client), world) as engine:
        exercise(engine)


def test_a_certificate_that_cannot_be_checked_is_refused(certificates: Path, tls_port: int, world: str) -> None:
    mine = f"cert={certificates}/server.pem&key={certificates}/server.key"
    for family, why in (
        (family_at(f"rediss://127.0.0.1:{tls_port}?{mine}"), "certificate is not accepted"),
        (family_at(f"rediss://127.0.0.2:{tls_port}?{mine}&ca={certificates}/ca.pem"), "cannot be reached"),
    ):
        with calling(family, world) as engine, pytest.raises(EngineUnavailable, match=why):
            engine.take(want("n"))


def test_insecure_tls_works_and_warns(certificates: Path, tls_port: int, world: str) -> None:
    mine = f"cert={certificates}/server.pem&key={certificates}/server.key"
    url = f"rediss://127.0.0.1:{tls_port}/{WORLDS.index(world)}?{mine}&insecure_skip_verify=true"
    with pytest.warns(GuaranteeWarning, match="not checked"):
        family = family_at(url)
    with calling(family, world) as engine:
        exercise(engine)


def test_plain_and_tls_do_not_mix(certificates: Path, tls_port: int, tmp_path: Path, world: str) -> None:
    with running(RedisServer("redis", tmp_path)) as plain:
        mixed = (f"rediss://127.0.0.1:{plain.port}?ca={certificates}/ca.pem", f"redis://127.0.0.1:{tls_port}")
        for url in mixed:
            with calling(family_at(url), world, seconds=1.0) as engine, pytest.raises(EngineError):
                engine.take(want("n"))


@contextlib.contextmanager
def replicated(folder: Path, program: str) -> Iterator[tuple[RedisServer, RedisServer, Sentinel]]:
    """A primary, a replica and a Sentinel that watches them."""
    for name in ("primary", "replica", "sentinel"):
        (folder / name).mkdir()
    primary = RedisServer(program, folder / "primary")
    replica = RedisServer(program, folder / "replica", "--replicaof", f"127.0.0.1 {primary.port}")
    sentinel = Sentinel(
        program,
        folder / "sentinel",
        f"sentinel monitor main 127.0.0.1 {primary.port} 1",
        "sentinel down-after-milliseconds main 500",
        "sentinel failover-timeout main 2000",
    )
    with running(primary), running(replica), running(sentinel):
        give_up_at = time.monotonic() + 20
        while not (
            b"state=online" in primary.ask("INFO", "replication") and sentinel.ask("SENTINEL", "REPLICAS", "main")
        ):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        yield primary, replica, sentinel


@pytest.mark.parametrize("program", ENGINES)
def test_sentinel_finds_the_primary_and_the_next_one(tmp_path: Path, program: str) -> None:
    with replicated(tmp_path, program) as (primary, replica, sentinel):
        url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main"
        family = family_at(url)
        with calling(family, "blocking") as engine, calling(family, "asyncio") as other:
            exercise(engine)
            exercise(other)
            for one in (engine, other):
                with pytest.raises(GuaranteeTooWeak, match="latest tokens"):
                    one.check_purpose("correctness")
                one.check_purpose("efficiency")
            assert family.facts.guarantee.fit_for_correctness is False
            for wrong, why in (
                (f"redis+sentinel://127.0.0.1:{sentinel.port}/other", "knows no such name"),
                (sentinel.url, "is a Sentinel"),
            ):
                with calling(family_at(wrong), "blocking") as lost, pytest.raises(EngineError, match=why):
                    lost.take(want("n"))
            with (
                calling(family_at(primary.url), "blocking") as direct,
                pytest.raises(GuaranteeTooWeak, match="1 replica"),
            ):
                direct.check_purpose("correctness")
            before = engine.take(want("held")).token
            primary.kill()
            after = [_take_when_possible(one) for one in (engine, other)]
            assert after[0] > before
            assert replica.ask("ROLE")[0] == b"master"


def _take_when_possible(engine: Caller) -> int:
    give_up_at = time.monotonic() + 30
    while True:
        try:
            answer = engine.take(want(fresh_name()))
        except EngineError:
            assert time.monotonic() < give_up_at
            engine.pause(0.1)
        else:
            token: int = answer.token
            return token


@pytest.mark.parametrize("program", ENGINES)
def test_one_node_of_a_cluster(tmp_path: Path, program: str, world: str) -> None:
    with (
        running(RedisServer(program, tmp_path, "--cluster-enabled", "yes")) as node,
        calling(family_at(node.url), world) as engine,
    ):
        with pytest.raises(EngineUnavailable, match="cluster is down"):
            engine.take(want("n"))
        node.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        give_up_at = time.monotonic() + 20
        while b"cluster_state:ok" not in node.ask("CLUSTER", "INFO") and time.monotonic() < give_up_at:
            time.sleep(0.05)
        for _ in range(5):
            exercise(engine)
        for _ in range(3):
            engine.take(want("r{}}{%", mode="shared"))
        assert engine.names(after=None, limit=10) == ["r{}}{%"]


def test_another_node_of_a_cluster_is_named_in_the_error() -> None:
    for words in ("MOVED 7 10.0.0.5:6379", "ASK 7 10.0.0.5:6379"):
        error = error_from(ErrorReply(words), "redis://h:1")
        assert not isinstance(error, EngineUnavailable), "to ask again would not help"
        assert "10.0.0.5:6379" in str(error)
        assert "another node" in str(error)


def test_correctness_asks_what_the_server_may_lose(tmp_path: Path, world: str) -> None:
    with running(RedisServer("redis", tmp_path)) as server, calling(family_at(server.url), world) as engine:
        with pytest.warns(GuaranteeWarning, match="appendonly yes"):
            engine.check_purpose("correctness")
        server.ask("CONFIG", "SET", "appendonly", "yes")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.check_purpose("correctness")
            server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            engine.check_purpose("correctness")  # without a limit nothing is evicted
            engine.check_purpose("efficiency")
        server.ask("CONFIG", "SET", "maxmemory", "100mb")
        with pytest.warns(GuaranteeWarning, match="maxmemory-policy noeviction"):
            engine.check_purpose("correctness")
        server.ask("ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-info")
        family = family_at(f"redis://blind:pw@127.0.0.1:{server.port}")
        with calling(family, world) as blind, pytest.warns(GuaranteeWarning, match="does not say"):
            blind.check_purpose("correctness")
