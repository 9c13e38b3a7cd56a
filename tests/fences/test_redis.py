"""What only the Redis fences have: keys and slots, scripts that get lost, replies that get lost, servers that die."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.retry import Retry
from tests.fences.local_server import LocalServer, running
from tests.fences.losing_proxy import LosingProxy

from leasehold.errors import InvalidName, InvalidToken, Misuse, StaleToken, TokenJump, TokenUsed
from leasehold.fences import AsyncRedisFence, RedisFence
from leasehold.fences.redis import FLOORS, floor_key
from leasehold.fences.rule import DAY

DAY_SECONDS = 86_400.0


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def fence(client: redis.Redis) -> RedisFence:
    return RedisFence(client)


# What can be done behind the fence


def test_values(fence: RedisFence, client: redis.Redis, resource: str) -> None:
    fence.set(resource, 5, "text")
    assert fence.get(resource, 5) == client.get(resource) == "text"
    fence.set(resource, 5, 7)
    assert fence.get(resource, 5) == "7"
    assert [fence.delete(resource, 5), fence.delete(resource, 5)] == [True, False]
    assert fence.get(resource, 5) is None


def test_values_come_back_as_the_client_decodes_them(redis_url: str, resource: str) -> None:
    for protocol in (2, 3):
        with redis.Redis.from_url(redis_url, protocol=protocol) as client:
            fence = RedisFence(client)
            fence.set(resource, 5, b"\xff\x00")
            assert fence.get(resource, 5) == b"\xff\x00"
            with pytest.raises(StaleToken) as refused:
                fence.get(resource, 4)
            assert (refused.value.token, refused.value.seen, fence.floor(resource)) == (4, 5, 5)


def test_hashes(fence: RedisFence, client: redis.Redis, resource: str) -> None:
    assert fence.hset(resource, 5, {"a": 1, "b": "two"}) == 2
    assert fence.hset(resource, 6, {"a": 3}) == 0
    assert [fence.hget(resource, 6, field) for field in ("a", "b", "c")] == ["3", "two", None]
    with pytest.raises(StaleToken):
        fence.hset(resource, 5, {"a": 0})
    with pytest.raises(StaleToken):
        fence.hget(resource, 5, "a")
    with pytest.raises(Misuse, match="empty"):
        fence.hset(resource, 6, {})
    assert client.hgetall(resource) == {"a": "3", "b": "two"}


def test_the_value_may_expire_and_the_floor_does_not(fence: RedisFence, client: redis.Redis, resource: str) -> None:
    fence.set(resource, 5, "brief", expires_in=0.05)
    give_up_at = time.monotonic() + 20
    while client.exists(resource):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    assert client.ttl(floor_key(resource)) == -1
    with pytest.raises(StaleToken):
        fence.set(resource, 4, "stale")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5", 1e12])
def test_an_expiry_is_a_number_of_seconds(fence: RedisFence, resource: str, seconds: Any) -> None:
    with pytest.raises(Misuse, match="expires_in must be a number of seconds"):
        fence.set(resource, 5, "x", expires_in=seconds)
    assert fence.floor(resource) is None


def test_a_script_runs_behind_the_check(fence: RedisFence, client: redis.Redis, resource: str) -> None:
    both = [f"{{{resource}}}:a", f"{{{resource}}}:b"]
    move = "redis.call('SET', KEYS[1], ARGV[1]); redis.call('SET', KEYS[2], ARGV[2]); return #KEYS + #ARGV -- done"
    assert fence.run(resource, 5, move, keys=both, args=["one", 2]) == 4
    assert client.mget(both) == ["one", "2"]
    with pytest.raises(StaleToken):
        fence.run(resource, 4, move, keys=both, args=["stale", "stale"])
    assert client.mget(both) == ["one", "2"]
    assert fence.run(resource, 5, "redis.call('SET', KEYS[1], 'mine')") is None
    assert client.get(resource) == "mine"
    assert fence.run(resource, 5, "return {redis.call('GET', KEYS[1]), false, 7}") == ["mine", None, 7]


def test_a_script_that_fails_does_not_use_up_the_token(fence: RedisFence, client: redis.Redis, resource: str) -> None:
    client.set(resource, "text")
    for script in ("redis.call('INCR', KEYS[1])", "return redis.pcall('INCR', KEYS[1])", "no lua"):
        with pytest.raises(redis.ResponseError):
            fence.run(resource, 5, script, once=True)
    fence.run(resource, 5, "redis.call('SET', KEYS[1], 1)", once=True)
    with pytest.raises(TokenUsed):
        fence.run(resource, 5, "redis.call('SET', KEYS[1], 2)", once=True)
    assert client.get(resource) == "1"


def test_a_command_on_the_wrong_kind_of_key_does_not_use_up_the_token(
    fence: RedisFence, client: redis.Redis, resource: str
) -> None:
    client.set(resource, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        fence.hset(resource, 5, {"a": 1}, once=True)
    fence.set(resource, 5, "only", once=True)
    assert client.get(resource) == "only"


def test_a_script_of_ones_own_has_no_header(fence: RedisFence, resource: str) -> None:
    with pytest.raises(Misuse, match="#!"):
        fence.run(resource, 5, "#!lua flags=no-writes\nreturn 1")


def test_a_jump_is_refused_until_it_is_confirmed(fence: RedisFence, resource: str) -> None:
    tomorrow = time.time_ns() // 1000 + 2 * DAY
    for seen in (None, 5):
        with pytest.raises(TokenJump) as refused:
            fence.set(resource, tomorrow, "x")
        assert (refused.value.token, refused.value.seen) == (tomorrow, seen)
        fence.announce(resource, 5)
    fence.set(resource, tomorrow, "x", allow_jump=True)
    fence.set(resource, tomorrow + DAY, "x")
    assert fence.floor(resource) == tomorrow + DAY


def test_the_asyncio_fence_does_the_same(redis_url: str, resource: str) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis.from_url(redis_url, decode_responses=True) as client:
            fence = AsyncRedisFence(client, keep_floors=DAY_SECONDS)
            assert await fence.floor(resource) is None
            await fence.set(resource, 5, "x", expires_in=60)
            assert await fence.get(resource, 5) == "x"
            assert await fence.delete(resource, 5)
            assert await fence.hset(resource, 5, {"a": 1}) == 1
            assert await fence.hget(resource, 5, "a") == "1"
            assert await fence.run(resource, 5, "return redis.call('HGET', KEYS[1], ARGV[1])", args=["a"]) == "1"
            await fence.announce(resource, 6)
            await fence.raise_floor(resource, 4)
            for refused in (
                fence.set(resource, 5, "x"),
                fence.get(resource, 5),
                fence.delete(resource, 5),
                fence.hset(resource, 5, {"a": 2}),
                fence.hget(resource, 5, "a"),
                fence.run(resource, 5, "return 1"),
                fence.announce(resource, 5),
            ):
                with pytest.raises(StaleToken):
                    await refused
            await fence.run(resource, 6, "return 1", once=True)
            with pytest.raises(TokenUsed):
                await fence.run(resource, 6, "return 1", once=True)
            with pytest.raises(TokenJump):
                await fence.announce(resource, 2**62)
            assert await fence.floor(resource) == 6

    asyncio.run(story())


# Clients


def test_a_client_of_the_other_world_is_refused(redis_url: str) -> None:
    with pytest.raises(Misuse, match="give it to RedisFence"):
        AsyncRedisFence(redis.Redis.from_url(redis_url))
    with pytest.raises(Misuse, match="give it to AsyncRedisFence"):
        RedisFence(redis.asyncio.Redis.from_url(redis_url))


def test_a_pipeline_is_refused(client: redis.Redis) -> None:
    with pytest.raises(Misuse, match="pipeline"):
        RedisFence(client.pipeline())
    with pytest.raises(Misuse, match="redis-py client"):
        RedisFence("redis://localhost")  # type: ignore[arg-type]


def test_fences_import_no_client() -> None:
    program = (
        "import sys\n"
        "for name in ('redis', 'hiredis', 'valkey'): sys.modules[name] = None\n"
        "import leasehold.fences\n"
        "print(leasehold.fences.RedisFence.__name__)\n"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "RedisFence\n"


# Floors


def test_a_floor_is_kept_for_ever_unless_asked(client: redis.Redis, resource: str) -> None:
    kept, forgetful = RedisFence(client), RedisFence(client, keep_floors=2 * DAY_SECONDS)
    floor = floor_key(resource)
    kept.announce(resource, 5)
    assert client.pttl(floor) == -1
    forgetful.announce(resource, 5)
    assert DAY_SECONDS * 1999 < client.pttl(floor) <= DAY_SECONDS * 2000
    client.pexpire(floor, 5000)
    forgetful.get(resource, 5)
    assert client.pttl(floor) > DAY_SECONDS * 1999, "every touch starts it anew"
    kept.announce(resource, 6)
    assert client.pttl(floor) == -1


@pytest.mark.parametrize("seconds", [0, 60, DAY_SECONDS - 1, float("nan"), float("inf"), True, "5"])
def test_a_floor_is_kept_for_a_day_at_least(client: redis.Redis, seconds: Any) -> None:
    with pytest.raises(Misuse, match="keep_floors must be a number of seconds from 86400"):
        RedisFence(client, keep_floors=seconds)


def test_a_floor_cannot_be_written_through_a_fence(fence: RedisFence, resource: str) -> None:
    fence.announce(resource, 5)
    with pytest.raises(InvalidName, match="belong to the fences"):
        fence.delete(floor_key(resource), 5)
    with pytest.raises(Misuse, match="belong to the fences"):
        fence.run(resource, 5, "redis.call('DEL', KEYS[1])", keys=[floor_key(resource)])
    assert fence.floor(resource) == 5


names = st.text(alphabet="{}ab:é", min_size=1, max_size=8)


@given(names, names)
def test_a_floor_shares_the_slot_of_its_resource_and_no_other_floor(one: str, two: str) -> None:
    floors = []
    for resource in (one, two):
        try:
            floors.append(floor_key(resource))
        except InvalidName:
            assert "}" in resource
        else:
            assert floors[-1].startswith(FLOORS)
            assert key_slot(floors[-1].encode()) == key_slot(resource.encode())
    if len(floors) == 2:
        assert (floors[0] == floors[1]) == (one == two)


@pytest.mark.parametrize("resource", ["a", "{a}", "{a}b", "x{a}", "a{b", "{{a}}", "a}b{c}", "é"])
def test_names_whose_slot_can_be_shared_are_accepted(resource: str) -> None:
    assert key_slot(floor_key(resource).encode()) == key_slot(resource.encode())


@pytest.mark.parametrize("resource", ["a}", "{}a", "}a{", "", "a\n", FLOORS + "{a}", b"a", None])
def test_other_names_are_refused_before_anything_is_sent(resource: Any) -> None:
    with redis.Redis(port=1) as nowhere, pytest.raises(InvalidName):
        RedisFence(nowhere).set(resource, 5, "x")


@pytest.mark.parametrize("token", [-1, 2**63, True, 1.0, "5", None])
def test_other_tokens_are_refused_before_anything_is_sent(token: Any) -> None:
    with redis.Redis(port=1) as nowhere, pytest.raises(InvalidToken):
        RedisFence(nowhere).set("thing", token, "x")


# Servers that forget, lose and die


def test_a_server_that_forgot_its_scripts_is_told_them_again(
    fence: RedisFence, client: redis.Redis, resource: str
) -> None:
    fence.set(resource, 5, "before")
    client.script_flush()
    fence.set(resource, 5, "after")
    client.script_flush()
    with pytest.raises(StaleToken):
        fence.set(resource, 4, "stale")
    assert client.get(resource) == "after"


@contextlib.contextmanager
def client_through_a_losing_proxy(url: str) -> Iterator[tuple[redis.Redis, LosingProxy]]:
    """A client that asks again when no answer comes, behind a proxy that can swallow one."""
    server = redis.Redis.from_url(url).connection_pool.connection_kwargs
    with LosingProxy(server["host"], server["port"]) as proxy:
        retry = Retry(NoBackoff(), 2)
        with redis.Redis(port=proxy.port, retry=retry, socket_timeout=20, decode_responses=True) as client:
            client.ping()
            yield client, proxy


def test_a_lost_reply_does_no_harm(redis_url: str, resource: str) -> None:
    with client_through_a_losing_proxy(redis_url) as (client, proxy):
        fence = RedisFence(client)
        fence.announce(resource, 5)
        fence.set(resource, 5, "before")
        proxy.lose_next_reply()
        fence.set(resource, 5, "after")
        assert proxy.lost == 1
        assert fence.get(resource, 5) == "after"


def test_a_lost_reply_to_the_only_write_says_that_it_was_carried_out(redis_url: str, resource: str) -> None:
    with client_through_a_losing_proxy(redis_url) as (client, proxy):
        fence = RedisFence(client)
        fence.set(resource, 4, "before", once=True)
        proxy.lose_next_reply()
        with pytest.raises(TokenUsed, match="it was carried out"):
            fence.set(resource, 5, "after", once=True)
        assert proxy.lost == 1
        assert fence.get(resource, 5) == "after"


@pytest.fixture(params=["redis", "valkey"])
def durable_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalServer]:
    with running(request.param, tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def test_floors_survive_a_server_that_was_killed(durable_server: LocalServer) -> None:
    with redis.Redis.from_url(durable_server.url, decode_responses=True) as client:
        fence = RedisFence(client)
        fence.set("thing", 5, "new")
        fence.announce("other", 7)
        durable_server.kill()
        durable_server.start()
        with pytest.raises(StaleToken):
            fence.set("thing", 4, "stale")
        assert [fence.floor("thing"), fence.floor("other"), client.get("thing")] == [5, 7, "new"]


def test_a_server_that_is_killed_half_way_leaves_nothing(durable_server: LocalServer) -> None:
    """Floor and write reach the disk together or not at all."""
    impatient = Retry(NoBackoff(), 0)
    with redis.Redis.from_url(durable_server.url, decode_responses=True, retry=impatient) as client:
        fence = RedisFence(client)
        fence.set("thing", 5, "whole")
        endless = "redis.call('SET', KEYS[1], 'half done') while true do end"
        ended = []

        def write() -> None:
            try:
                fence.run("thing", 6, endless)
            except redis.RedisError as error:
                ended.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        give_up_at = time.monotonic() + 20
        while not busy(durable_server.url):
            assert time.monotonic() < give_up_at
        durable_server.kill()
        writer.join(timeout=60)
        assert ended
        durable_server.start()
        assert (fence.floor("thing"), client.get("thing")) == (5, "whole")
        fence.set("thing", 5, "still mine")


def busy(url: str) -> bool:
    """Whether a script keeps the server from answering."""
    with redis.Redis.from_url(url, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)) as client:
        try:
            client.ping()
        except (redis.TimeoutError, redis.ResponseError):
            return True
        return False


def test_a_cluster_keeps_floor_and_resource_together(tmp_path: Path) -> None:
    with running("redis", tmp_path, "--cluster-enabled", "yes") as server:
        with redis.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            give_up_at = time.monotonic() + 20
            while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                assert time.monotonic() < give_up_at
                time.sleep(0.02)
        with contextlib.closing(RedisCluster(host="127.0.0.1", port=server.port, decode_responses=True)) as cluster:
            fence = RedisFence(cluster)
            for resource in ("thing", "{user}:a", "x{user}y{z}", "{{a}}", "a{b"):
                fence.set(resource, 5, "new")
                with pytest.raises(StaleToken):
                    fence.delete(resource, 4)
                assert fence.get(resource, 5) == "new"
                cluster.script_flush()
            keys = ["{user}:a", "{user}:b"]
            assert fence.run("{user}", 5, "return redis.call('MGET', KEYS[1], KEYS[2])", keys=keys) == ["new", None]
