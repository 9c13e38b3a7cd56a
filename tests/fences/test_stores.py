"""What is special about the fences in etcd, ZooKeeper, S3 and DynamoDB."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import importlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given, settings
from tests.fences.guards import Guard
from tests.fences.store_guards import BUCKET, TABLE, DynamoDBGuard, S3Guard, ZooKeeperGuard, aws_client
from tests.fences.test_model import LIMIT, Call, Model, answer, calls
from tests.support.etcd_server import EtcdNode, running_etcd
from tests.support.moto_server import running_moto

from leasehold import Leasehold
from leasehold.engines.etcd import ownership
from leasehold.errors import EngineUnavailable, InvalidName, LeaseLost, Misuse, StaleToken, TokenUsed, VersionConflict
from leasehold.fences import (
    AsyncDynamoDBFence,
    AsyncEtcdFence,
    AsyncS3Fence,
    DynamoDBFence,
    EtcdFence,
    S3Fence,
    ZooKeeperFence,
    etcd,
    zookeeper,
)
from leasehold.fences.s3 import payload_of

FreshOf = Callable[[str], Callable[[], Guard]]
_numbers = itertools.count()


@pytest.fixture
def guard(request: pytest.FixtureRequest, fresh_of: FreshOf) -> Iterator[Guard]:
    one = fresh_of(request.param)()
    yield one
    one.close()


def on(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("guard", [kind], indirect=True)


# Any sequence of calls gets the answers that the rule gives, jumps included


@pytest.mark.parametrize("guard", ["etcd", "zookeeper", "s3", "gcs", "dynamodb"], indirect=True)
def test_the_store_answers_as_the_rule_does(guard: Any) -> None:
    fence = guard.fence
    fence._rule = type(fence._rule)(LIMIT)

    @given(calls)
    @settings(max_examples=15, deadline=None)
    def compare(asked: list[Call]) -> None:
        model, unique = Model(), next(_numbers)

        def subject(call: Call) -> int | None:
            resource = f"/{call.resource}-{unique}"
            if not call.writes:
                fence.announce(resource, call.token, allow_jump=call.allow_jump)
            elif isinstance(guard, DynamoDBGuard):
                fence.transact(resource, call.token, [], once=call.once, allow_jump=call.allow_jump)
            else:
                fence.put(resource, call.token, b"x", once=call.once, allow_jump=call.allow_jump)
            found: int | None = fence.floor(resource)
            return found

        def modelled(call: Call) -> int | None:
            return model(call._replace(resource=f"/{call.resource}-{unique}"))

        for call in asked:
            assert answer(subject, call) == answer(modelled, call)

    compare()


# etcd


@pytest.fixture(scope="module")
def etcd_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd"), settings=["--unsafe-no-fsync"]) as node:
        yield node


def test_a_transaction_of_ones_own_is_carried_out_as_a_whole(etcd_node: EtcdNode) -> None:
    with EtcdFence(etcd_node.url) as fence:
        revision = fence.transact("pair", 5, [etcd.Put("left", b"1"), etcd.Put("right", b"1")])
        assert revision == etcd_node.revision()
        with pytest.raises(StaleToken):
            fence.transact("pair", 4, [etcd.Put("left", b"2"), etcd.Delete("right")])
        assert (fence.get("left", 5), fence.get("right", 5)) == (b"1", b"1")
        fence.transact("pair", 6, [etcd.Put("left", b"2"), etcd.Delete("right")])
        assert (fence.get("left", 6), fence.get("right", 6)) == (b"2", None)
        assert fence.delete("left", 6) is True
        assert fence.delete("left", 6) is False


def test_a_lease_that_is_gone_from_the_cluster_writes_nothing(etcd_node: EtcdNode) -> None:
    """Though nobody came after it, and though its own clock still believes in it."""
    with EtcdFence(etcd_node.url) as fence, Leasehold(etcd_node.url) as locks:
        lease = locks.lock("held", ttl=30).acquire()
        held = ownership(lease)
        fence.put("held-thing", lease, b"mine", held=held)
        etcd_node.delete(held.key.decode())
        with pytest.raises(LeaseLost, match="nothing was written"):
            fence.put("held-thing", lease, b"too late", held=held)
        with pytest.raises(LeaseLost):
            fence.delete("held-thing", lease, held=held)
        assert fence.get("held-thing", lease) == b"mine"


def test_a_client_of_ones_own_sends_the_conditions_along(etcd_node: EtcdNode) -> None:
    """Here it is the JSON gateway, which shares no code with the fence."""

    def encoded(text: str | bytes) -> str:
        return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()

    def send(fenced: etcd.Conditions, value: str) -> bool:
        compare = [
            {"key": encoded(one.key), "target": "VALUE", "result": one.result, "value": encoded(one.value)}
            for one in fenced.compare
        ]
        puts = [*fenced.puts, etcd.Put("theirs", value.encode())]
        success = [{"requestPut": {"key": encoded(one.key), "value": encoded(one.value)}} for one in puts]
        return bool(etcd_node.ask("/v3/kv/txn", {"compare": compare, "success": success}).get("succeeded"))

    with EtcdFence(etcd_node.url) as fence:
        assert not send(fence.conditions("theirs", 33), "before any floor"), "the floor must be there"
        fence.announce("theirs", 33)
        assert send(fence.conditions("theirs", 33, once=True), "by 33")
        assert not send(fence.conditions("theirs", 33, once=True), "by 33 again")
        fence.announce("theirs", 34)
        assert not send(fence.conditions("theirs", 33), "stale")
        with pytest.raises(StaleToken):
            fence.announce("theirs", 33)
        assert fence.get("theirs", 34) == b"by 33"


def test_etcd_keys_of_floors_are_not_for_others(etcd_node: EtcdNode) -> None:
    with EtcdFence(etcd_node.url) as fence:
        for wrong in (f"{etcd.FLOORS}seen/x", ""):
            with pytest.raises(InvalidName):
                fence.transact("x", 5, [etcd.Put(wrong, b"")])
        with pytest.raises(Misuse, match="is a Put or a Delete"):
            fence.transact("x", 5, ["put"])  # type: ignore[list-item]
        etcd_node.ask("/v3/kv/put", {"key": base64.b64encode(b"leasehold-fence/seen/odd").decode(), "value": "b2Rk"})
        with pytest.raises(Misuse, match="not a number"):
            fence.floor("odd")


def test_an_etcd_that_is_gone_is_told(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as node:
        fence = EtcdFence(node.url)
        fence.put("thing", 5, b"x")
        node.kill()
        with pytest.raises(EngineUnavailable):
            fence.put("thing", 5, b"y")
        fence.close()


def test_async_code_holds_and_loses_in_etcd_too(etcd_node: EtcdNode) -> None:
    async def work() -> None:
        async with AsyncEtcdFence(etcd_node.url) as fence:
            await asyncio.gather(*(fence.put(f"many/{number}", 5, b"x") for number in range(20)))
            assert await fence.get("many/19", 5) == b"x"
            with pytest.raises(LeaseLost):
                await fence.put("many/1", 6, b"y", held=etcd_holding("no-such-key", 7))
            assert await fence.floor("many/1") == 5

    asyncio.run(work())


def etcd_holding(key: str, revision: int) -> Any:
    from leasehold.engines.etcd import Ownership

    return Ownership(key.encode(), revision)


# ZooKeeper


@on("zookeeper")
def test_all_of_a_multi_is_carried_out_or_none(guard: ZooKeeperGuard) -> None:
    fence, path = guard.fence, guard.resource
    left, right = f"{path}-left", f"{path}-right"
    fence.transact(path, 5, [zookeeper.Create(left, b"1"), zookeeper.Create(right, b"1")])
    with pytest.raises(StaleToken):
        fence.transact(path, 4, [zookeeper.Set(left, b"2"), zookeeper.Delete(right)])
    with pytest.raises(VersionConflict, match="set by others since"):
        fence.transact(path, 6, [zookeeper.Set(left, b"2"), zookeeper.Set(right, b"2", version=7)])
    with pytest.raises(VersionConflict, match="there is such a node already"):
        fence.transact(path, 6, [zookeeper.Create(left, b"")])
    with pytest.raises(VersionConflict, match="no such node"):
        fence.transact(path, 6, [zookeeper.Delete(f"{path}-nothing")])
    assert fence.floor(path) == 5, "what was refused has not raised the floor"
    assert fence.get(left, 5) == b"1"
    fence.transact(path, 6, [zookeeper.Set(left, b"2", version=0), zookeeper.Delete(right, version=0)])
    assert (fence.get(left, 6), fence.get(right, 6)) == (b"2", None)
    with pytest.raises(VersionConflict, match="parent"):
        fence.put(f"{path}-nowhere/child", 5, b"")


@on("zookeeper")
def test_zookeeper_paths_are_looked_at(guard: ZooKeeperGuard) -> None:
    for wrong in ("thing", "/thing/", "//thing", "/leasehold-fence/thing", "/leasehold-fence"):
        with pytest.raises(InvalidName):
            guard.fence.put(wrong, 5, b"x")


@on("zookeeper")
def test_a_session_that_is_over_is_begun_anew(guard: ZooKeeperGuard) -> None:
    guard.write(5, "before")
    guard.fence._store._session.end()
    guard.write(6, "after")
    assert guard.peek() == "after"


@on("zookeeper")
def test_a_path_before_all_paths_is_made(guard: ZooKeeperGuard) -> None:
    with ZooKeeperFence(guard.address.replace("?", f"/app{next(_numbers)}/deep?")) as fence:
        fence.put("/thing", 5, b"x")
        with pytest.raises(StaleToken):
            fence.put("/thing", 4, b"y")
        assert fence.get("/thing", 5) == b"x"


# S3


@on("s3")
def test_the_server_of_the_tests_refuses_for_real(guard: S3Guard) -> None:
    """What the fence relies on, asked of the server itself."""
    client, error = guard.past, importlib.import_module("botocore.exceptions").ClientError
    first = client.put_object(Bucket=BUCKET, Key=guard.resource, Body=b"1", IfNoneMatch="*")
    with pytest.raises(error) as refused:
        client.put_object(Bucket=BUCKET, Key=guard.resource, Body=b"2", IfNoneMatch="*")
    assert refused.value.response["Error"]["Code"] == "PreconditionFailed"
    client.put_object(Bucket=BUCKET, Key=guard.resource, Body=b"2", IfMatch=first["ETag"])
    with pytest.raises(error):
        client.put_object(Bucket=BUCKET, Key=guard.resource, Body=b"3", IfMatch=first["ETag"])
    same = [
        client.put_object(Bucket=BUCKET, Key=guard.resource, Body=b"same", Metadata={"token": token})["ETag"]
        for token in ("1", "2")
    ]
    assert same[0] == same[1], "an ETag speaks of the body alone"


_SETTINGS: dict[str, Any] = {
    "CacheControl": "no-store",
    "ContentDisposition": "inline",
    "ContentEncoding": "gzip",
    "ContentLanguage": "de",
    "ContentType": "application/json",
    "Expires": dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
    "Metadata": {"a": "b"},
    "WebsiteRedirectLocation": "/elsewhere",
    "StorageClass": "STANDARD_IA",
    "ServerSideEncryption": "aws:kms",
    "SSEKMSKeyId": "arn:aws:kms:us-east-1:123456789012:key/ours",
    "BucketKeyEnabled": True,
}


@pytest.mark.parametrize("guard", ["s3", "s3 asyncio"], indirect=True)
def test_what_goes_along_with_an_object_stays(guard: S3Guard) -> None:
    tags = {"team": "billing", "cost centre": "a+b=c"}
    given = {**_SETTINGS, "Tagging": urlencode(tags)}
    guard.run(guard.fence.put(guard.resource, 5, b"{}", settings=given))
    guard.announce(6)
    assert guard.run(guard.fence.get(guard.resource, 7)) == b"{}"
    found = guard.past.get_object(Bucket=BUCKET, Key=guard.resource)
    assert {name: found.get(name) for name in _SETTINGS} == _SETTINGS
    assert payload_of(found["Body"].read()) == b"{}"
    kept = guard.past.get_object_tagging(Bucket=BUCKET, Key=guard.resource)["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in kept} == tags


@on("s3")
def test_settings_of_the_fence_are_not_for_others(guard: S3Guard) -> None:
    with pytest.raises(Misuse, match="IfMatch is set by the fence"):
        guard.fence.put(guard.resource, 6, b"", settings={"IfMatch": "x"})


@on("s3")
def test_tags_are_asked_for_only_where_there_are_some(guard: S3Guard) -> None:
    asked: list[str] = []
    guard.past.meta.events.register("before-call.s3", lambda model, **_: asked.append(model.name))
    guard.write(5, "x")
    guard.announce(6)
    assert asked == ["GetObject", "PutObject", "GetObject", "PutObject"]


@on("s3")
def test_an_object_that_is_removed_before_its_tags_are_read_has_none(guard: S3Guard) -> None:
    guard.fence.put(guard.resource, 5, b"x", settings={"Tagging": "team=billing"})

    def remove(**_: object) -> None:
        guard.past.delete_object(Bucket=BUCKET, Key=guard.resource)

    guard.past.meta.events.register("before-call.s3.GetObjectTagging", remove)
    assert guard.fence.get(guard.resource, 6) is None
    assert guard.floor() == 6


_MAY_NOT_READ_TAGS = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": "*"}],
}


def test_tags_that_may_not_be_read_are_not_dropped_without_a_word() -> None:
    """A server of its own, which asks who somebody is from here on."""
    with running_moto() as url, contextlib.ExitStack() as clients:
        s3, iam = (clients.enter_context(contextlib.closing(aws_client(name, url))) for name in ("s3", "iam"))
        s3.create_bucket(Bucket=BUCKET)
        S3Fence(s3, BUCKET).put("tagged", 5, b"x", settings={"Tagging": "team=billing"})
        iam.create_user(UserName="writer")
        iam.put_user_policy(UserName="writer", PolicyName="own", PolicyDocument=json.dumps(_MAY_NOT_READ_TAGS))
        key = iam.create_access_key(UserName="writer")["AccessKey"]
        writer = clients.enter_context(
            contextlib.closing(aws_client("s3", url, key["AccessKeyId"], key["SecretAccessKey"]))
        )
        httpx.post(f"{url}/moto-api/reset-auth", content=b"0").raise_for_status()
        fence = S3Fence(writer, BUCKET)
        with pytest.raises(writer.exceptions.ClientError, match=r"AccessDenied.*GetObjectTagging"):
            fence.get("tagged", 6)
        assert fence.floor("tagged") == 5


@on("s3")
@pytest.mark.parametrize("before", [b"theirs", b""])
def test_objects_from_before_are_taken_over_only_when_that_is_said(guard: S3Guard, before: bytes) -> None:
    guard.past.put_object(Bucket=BUCKET, Key=guard.resource, Body=before)
    with pytest.raises(Misuse, match="adopt=True"):
        guard.fence.put(guard.resource, 5, b"new")
    with pytest.raises(Misuse, match="not written behind a fence"):
        payload_of(before)
    fence = S3Fence(guard.past, BUCKET, adopt=True)
    assert fence.get(guard.resource, 5) == before
    with pytest.raises(StaleToken):
        guard.fence.put(guard.resource, 4, b"stale")
    assert guard.fence.delete(guard.resource, 5) is True
    assert guard.fence.delete(guard.resource, 5) is False
    assert guard.fence.get(guard.resource, 5) is None


@on("s3")
def test_an_object_that_others_removed_meanwhile_is_put_again(guard: S3Guard) -> None:
    guard.write(5, "x")
    guard.write(5, "y", between=lambda: guard.past.delete_object(Bucket=BUCKET, Key=guard.resource))
    assert (guard.peek(), guard.floor()) == ("y", 5)


@on("s3")
def test_errors_of_the_store_come_as_they_are(guard: S3Guard) -> None:
    fence = S3Fence(guard.past, "no-such-bucket")
    with pytest.raises(guard.past.exceptions.NoSuchBucket):
        fence.put("thing", 5, b"x")


# DynamoDB


def _item(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"Put": {"TableName": TABLE, "Item": {"id": {"S": key}, "value": {"S": value}}, **more}}


@on("dynamodb")
def test_all_items_are_written_or_none(guard: DynamoDBGuard) -> None:
    left, right = f"{guard.resource}-left", f"{guard.resource}-right"
    guard.fence.transact(guard.resource, 5, [_item(left, "1"), _item(right, "1")])
    with pytest.raises(StaleToken):
        guard.fence.transact(guard.resource, 4, [_item(left, "2"), _item(right, "2")])
    own = {"ConditionExpression": "attribute_not_exists(id)"}
    with pytest.raises(guard.past.exceptions.TransactionCanceledException):
        guard.fence.transact(guard.resource, 6, [_item(left, "3"), _item(right, "3", **own)])
    found = guard.past.get_item(TableName=TABLE, Key={"id": {"S": left}})["Item"]
    assert (found["value"]["S"], guard.floor()) == ("1", 5), "a condition of one's own undoes the floor as well"
    with pytest.raises(Misuse, match="belongs to the fences"):
        guard.fence.transact(guard.resource, 6, [{"Delete": {"TableName": "leasehold_fence", "Key": {}}}])
    guard.fence.create()  # is there already
    with pytest.raises(TokenUsed):
        guard.fence.transact(guard.resource, 5, [], once=True)


@pytest.mark.parametrize(
    ("guard", "blocking", "in_asyncio"),
    [("s3", S3Fence, AsyncS3Fence), ("dynamodb", DynamoDBFence, AsyncDynamoDBFence)],
    indirect=["guard"],
)
def test_clients_of_the_other_world_are_refused(guard: Any, blocking: Any, in_asyncio: Any, fresh_of: FreshOf) -> None:
    more = {"bucket": BUCKET} if blocking is S3Fence else {}
    with pytest.raises(Misuse, match=f"this client is blocking; give it to {blocking.__name__}"):
        in_asyncio(guard.past, **more)
    with pytest.raises(Misuse, match="give a client of"):
        blocking(object(), **more)
    other: Any = fresh_of(f"{guard.SERVICE} asyncio")()
    with pytest.raises(Misuse, match=f"one for asyncio; give it to {in_asyncio.__name__}"):
        blocking(other.fence._client, **more)
    other.close()


def test_a_password_is_not_shown() -> None:
    for fence in (
        EtcdFence("etcd://someone:hunter22@127.0.0.1:1"),
        ZooKeeperFence("zookeeper://u:hunter22@127.0.0.1:1"),
    ):
        assert "hunter22" not in repr(fence) + repr(vars(fence))
