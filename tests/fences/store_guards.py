"""Guards of things in stores that a fence reaches by a client, blocking and async."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import importlib
import inspect
import json
import urllib.request
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self
from urllib.parse import quote

import httpx
from tests.fences.guards import Guard

from leasehold.fences import (
    AsyncDynamoDBFence,
    AsyncEtcdFence,
    AsyncGcsFence,
    AsyncS3Fence,
    AsyncZooKeeperFence,
    DynamoDBFence,
    EtcdFence,
    GcsFence,
    S3Fence,
    ZooKeeperFence,
)
from leasehold.fences.etcd import FLOORS
from leasehold.fences.s3 import payload_of
from leasehold.names import HIGHEST_TOKEN
from leasehold.wires import etcd_messages
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.etcd_store import Transaction
from leasehold.wires.zookeeper_store import ZooKeeperStore

Between = Callable[[], object] | None
BUCKET, TABLE = "things", "thing"


class StoreGuard(Guard):
    """Drives a fence of either world: what has to be awaited is, in an event loop of its own."""

    fence: Any

    def __init__(self, address: str, resource: str, *, patience: float = 0.2, in_asyncio: bool = False) -> None:
        super().__init__()
        self.address, self.resource, self.in_asyncio = address, resource, in_asyncio
        self._runner = asyncio.Runner() if in_asyncio else None
        self._ends = contextlib.AsyncExitStack()
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Make the fence."""

    def run(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        assert self._runner is not None

        async def awaited() -> Any:
            return await result

        return self._runner.run(awaited())

    def _another(self) -> Self:
        return type(self)(self.address, self.resource, in_asyncio=self.in_asyncio)

    @contextlib.contextmanager
    def overtaken(self, between: Between) -> Iterator[None]:
        """Run `between` after the fence has read and before it writes, where it does so in two steps."""
        yield

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        with self.overtaken(between):
            self.run(self.fence.put(self.resource, token, value.encode(), once=once))

    def read(self, token: int) -> str | None:
        found = self.run(self.fence.get(self.resource, token))
        return None if found is None else found.decode()

    def delete(self, token: int) -> None:
        self.run(self.fence.delete(self.resource, token))

    def announce(self, token: int) -> None:
        self.run(self.fence.announce(self.resource, token))

    def raise_floor(self, token: int) -> None:
        self.run(self.fence.raise_floor(self.resource, token))

    def floor(self) -> int | None:
        found: int | None = self.run(self.fence.floor(self.resource))
        return found

    def _close(self) -> None:
        if hasattr(self.fence, "close"):
            self.run(self.fence.close())
        self.run(self._ends.aclose()) if self.in_asyncio else None
        if self._runner is not None:
            self._runner.close()


class EtcdGuard(StoreGuard):
    def _open(self) -> None:
        self.fence = (AsyncEtcdFence if self.in_asyncio else EtcdFence)(self.address, jump_limit=HIGHEST_TOKEN)

    def write_past(self, value: str) -> None:
        put = etcd_messages.put(self.resource.encode(), value.encode(), 0)
        self.run(self.fence._store.carry_out(Transaction([], [put], [])))

    def _found(self, key: str, end: str = "") -> list[bytes]:
        """The value of a key, or those up to another. Through the JSON gateway, which shares no code with the fence."""
        names = {"key": key, "range_end": end}
        body = json.dumps({name: base64.b64encode(value.encode()).decode() for name, value in names.items()}).encode()
        url = self.address.replace("etcd:", "http:") + "/v3/kv/range"
        with urllib.request.urlopen(url, data=body, timeout=10.0) as answer:
            return [base64.b64decode(one.get("value", "")) for one in json.load(answer).get("kvs", [])]

    def peek(self) -> str | None:
        found = self._found(self.resource)
        return found[0].decode() if found else None

    def floor_size(self) -> int:
        return sum(len(value) for value in self._found(FLOORS, FLOORS[:-1] + chr(ord(FLOORS[-1]) + 1)))


class ZooKeeperGuard(StoreGuard):
    """Things are nodes: ``thing:1`` is ``/thing:1``."""

    def __init__(self, address: str, resource: str, *, patience: float = 0.2, in_asyncio: bool = False) -> None:
        super().__init__(address, "/" + resource.lstrip("/"), in_asyncio=in_asyncio)

    def _open(self) -> None:
        fence = AsyncZooKeeperFence if self.in_asyncio else ZooKeeperFence
        self.fence = fence(self.address, jump_limit=HIGHEST_TOKEN)
        self.past = ZooKeeperStore(self.address)

    @contextlib.contextmanager
    def overtaken(self, between: Between) -> Iterator[None]:
        store, ask = self.fence._store, self.fence._store.ask
        waiting = [between] if between is not None else []

        def watched(requests: Any) -> Any:
            if any(request.changes for request in requests) and waiting:
                waiting.pop()()
            return ask(requests)

        async def watched_in_asyncio(requests: Any) -> Any:
            if any(request.changes for request in requests) and waiting:
                await asyncio.to_thread(waiting.pop())
            return await ask(requests)

        store.ask = watched_in_asyncio if self.in_asyncio else watched
        try:
            yield
        finally:
            store.ask = ask

    def write_past(self, value: str) -> None:
        self.run(self.fence._store.ask([messages.set_data(self.resource, value.encode())]))

    def floor_size(self) -> int:
        path = self.fence.floor_path(self.resource)
        replies = self.past.ask([messages.get_data(one) for one in (path, path.rpartition("/")[0])])
        (data, own), (_, all_of_them) = (messages.data_in(reply.body) for reply in replies)
        return len(data) + own.children + all_of_them.children

    def peek(self) -> str | None:
        _, reply = self.past.ask([messages.sync(self.resource), messages.get_data(self.resource)])
        return None if reply.error else messages.data_in(reply.body)[0].decode()

    def _close(self) -> None:
        self.past.close()
        super()._close()


def aws_client(service: str, url: str, key: str = "test", secret: str = "test") -> Any:
    """A client of boto3, as people make one."""
    config = importlib.import_module("botocore.config").Config(s3={"addressing_style": "path"})
    return importlib.import_module("boto3").client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=config,
    )


@functools.cache
def _aio_session() -> Any:
    """One for all: reading what it knows of the services takes longer than a test."""
    return importlib.import_module("aiobotocore.session").get_session()


class _AwsGuard(StoreGuard):
    SERVICE: str

    def client(self) -> Any:
        """For the fence: of boto3 or of aiobotocore."""
        if not self.in_asyncio:
            return self.past
        context = _aio_session().create_client(
            self.SERVICE,
            endpoint_url=self.address,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        return self.run(self._ends.enter_async_context(context))

    @property
    def past(self) -> Any:
        """A blocking client, past the fence."""
        if not hasattr(self, "_past"):
            self._past = aws_client(self.SERVICE, self.address)
        return self._past

    def _close(self) -> None:
        self.past.close()
        super()._close()


class S3Guard(_AwsGuard):
    SERVICE = "s3"

    def _open(self) -> None:
        fence = AsyncS3Fence if self.in_asyncio else S3Fence
        self.fence = fence(self.client(), BUCKET, jump_limit=HIGHEST_TOKEN)

    @contextlib.contextmanager
    def overtaken(self, between: Between) -> Iterator[None]:
        events = self.fence._client.meta.events
        waiting = [between] if between is not None else []

        def before(**_: object) -> None:
            if waiting:
                waiting.pop()()

        async def before_in_asyncio(**_: object) -> None:
            if waiting:
                await asyncio.to_thread(waiting.pop())

        handler = before_in_asyncio if self.in_asyncio else before
        events.register("before-call.s3.PutObject", handler)
        try:
            yield
        finally:
            events.unregister("before-call.s3.PutObject", handler)

    def write_past(self, value: str) -> None:
        """To another key: without its head the object would have no floor any more."""
        self.run(self.fence._client.put_object(Bucket=BUCKET, Key=f"{self.resource} past", Body=value.encode()))

    def floor_size(self) -> int:
        whole = self.past.head_object(Bucket=BUCKET, Key=self.resource)["ContentLength"]
        pages = self.past.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return int(whole) - len(self.peek() or "") + sum(int(page["KeyCount"]) for page in pages)

    def peek(self) -> str | None:
        try:
            body = self.past.get_object(Bucket=BUCKET, Key=self.resource)["Body"].read()
        except self.past.exceptions.NoSuchKey:
            return None
        found = payload_of(body)
        return None if found is None else found.decode()


class DynamoDBGuard(_AwsGuard):
    SERVICE = "dynamodb"

    def _open(self) -> None:
        fence = AsyncDynamoDBFence if self.in_asyncio else DynamoDBFence
        self.fence = fence(self.client(), jump_limit=HIGHEST_TOKEN)

    @property
    def _key(self) -> dict[str, Any]:
        return {"id": {"S": self.resource}}

    def write(self, token: int, value: str, *, once: bool = False, between: Between = None) -> None:
        item = {"Put": {"TableName": TABLE, "Item": {**self._key, "value": {"S": value}}}}
        self.run(self.fence.transact(self.resource, token, [item], once=once))

    def write_past(self, value: str) -> None:
        self.run(self.fence._client.put_item(TableName=TABLE, Item={**self._key, "value": {"S": value}}))

    def floor_size(self) -> int:
        key = {"resource": {"S": self.resource}}
        own = len(str(self.past.get_item(TableName="leasehold_fence", Key=key)["Item"]))
        return own + int(self.past.scan(TableName="leasehold_fence", Select="COUNT")["Count"])

    def read(self, token: int) -> str | None:
        self.announce(token)
        return self.peek()

    def delete(self, token: int) -> None:
        self.run(self.fence.transact(self.resource, token, [{"Delete": {"TableName": TABLE, "Key": self._key}}]))

    def peek(self) -> str | None:
        found = self.past.get_item(TableName=TABLE, Key=self._key, ConsistentRead=True).get("Item")
        return None if found is None else str(found["value"]["S"])


class GcsGuard(StoreGuard):
    def _open(self) -> None:
        client: Any = httpx.AsyncClient() if self.in_asyncio else httpx.Client()
        fence: Any = AsyncGcsFence if self.in_asyncio else GcsFence
        self.fence = fence(client, BUCKET, endpoint=self.address, jump_limit=HIGHEST_TOKEN)
        self.past = httpx.Client()
        self.url = f"{self.address}/storage/v1/b/{BUCKET}/o/{quote(self.resource, safe='')}"

    @contextlib.contextmanager
    def overtaken(self, between: Between) -> Iterator[None]:
        hooks, waiting = self.fence._session.event_hooks, [between] if between is not None else []

        def before(request: httpx.Request) -> None:
            if request.method == "POST" and waiting:
                waiting.pop()()

        async def before_in_asyncio(request: httpx.Request) -> None:
            if request.method == "POST" and waiting:
                await asyncio.to_thread(waiting.pop())

        self.fence._session.event_hooks = {"request": [before_in_asyncio if self.in_asyncio else before]}
        try:
            yield
        finally:
            self.fence._session.event_hooks = hooks

    def write_past(self, value: str) -> None:
        """To another object: this one would lose its floor."""
        url = f"{self.address}/upload/storage/v1/b/{BUCKET}/o"
        query = {"uploadType": "media", "name": f"{self.resource} past"}
        self.run(self.fence._session.post(url, params=query, content=value.encode())).raise_for_status()

    def _fields(self) -> dict[str, Any]:
        answer = self.past.get(self.url)
        return {} if answer.status_code == 404 else dict(answer.raise_for_status().json())

    def floor_size(self) -> int:
        objects = self.past.get(f"{self.address}/storage/v1/b/{BUCKET}/o").raise_for_status().json()["items"]
        return len(json.dumps(self._fields()["metadata"])) + len(objects)

    def peek(self) -> str | None:
        fields = self._fields()
        if not fields or fields["metadata"]["leasehold-deleted"] == "yes":
            return None
        return self.past.get(self.url, params={"alt": "media"}).raise_for_status().text

    def _close(self) -> None:
        self.past.close()
        self.run(self.fence._session.aclose() if self.in_asyncio else self.fence._session.close())
        super()._close()


def prepare_aws(url: str) -> None:
    """Make the bucket and the tables, once for all."""
    s3, dynamodb = aws_client("s3", url), aws_client("dynamodb", url)
    s3.create_bucket(Bucket=BUCKET)
    DynamoDBFence(dynamodb).create()
    dynamodb.create_table(
        TableName=TABLE,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    s3.close()
    dynamodb.close()
