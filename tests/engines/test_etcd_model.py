"""The simulator's model of etcd beside a real one: both get the same bytes, and have to give the same answers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import grpc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.etcd_server import EtcdNode, running_etcd

from leasehold.sim.etcd_model import Etcd, Refusal, Watched
from leasehold.wires import etcd_messages as messages
from leasehold.wires.etcd_address import address_from_url
from leasehold.wires.etcd_lines import Lines
from leasehold.wires.etcd_messages import Message
from leasehold.wires.etcd_watch import WatchHub

KINDS = ("e", "p", "s")
NUMBERS = st.integers(0, 2)
LEASES = st.integers(0, 2)
AGES = st.integers(0, 3)
_runs = itertools.count(1)
TELLS_WITHIN = 30.0


class Heard:
    """What a watch on the real server told."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.deletions: list[tuple[bytes, int]] = []

    def began(self, revision: int) -> None:
        assert revision > 0
        self.begun.set()

    def deleted(self, key: bytes, revision: int) -> None:
        self.deletions.append((key, revision))

    def broke(self) -> None:
        self.deletions.append((b"the watch broke", 0))


def shape(answer: bytes) -> list[Any]:
    """All that a message says, with nested ones taken apart where we read them; headers only by their revision."""
    message = Message(answer)
    found = [shape_of_range(one) for one in message.blobs(2)]
    operations = [shape_of_operation(Message(one)) for one in message.blobs(3)]
    return [Message(message.blob(1)).number(3), numbers_in(message), found, operations]


def numbers_in(message: Message) -> list[tuple[int, int]]:
    """Zero is as good as absent."""
    return sorted((field, number) for field, number in message._numbers.items() if number)


def shape_of_range(key: bytes) -> tuple[Any, ...]:
    message = Message(key)
    return (*(message.number(field) for field in (2, 3, 4, 6)), message.blob(1), message.blob(5))


def shape_of_operation(operation: Message) -> list[Any]:
    field = next(number for number in (1, 2, 3, 4) if operation.has(number))
    inner = Message(operation.blob(field))
    nested = [shape_of_operation(Message(one)) for one in inner.blobs(3)]
    return [field, numbers_in(inner), [shape_of_range(one) for one in inner.blobs(2)], nested]


class EtcdAndModel(RuleBasedStateMachine):
    """Drives both."""

    url: ClassVar[str]

    @initialize()
    def begin(self) -> None:
        self.lines = Lines(address_from_url(self.url))
        run = next(_runs)
        self.base, self.lease_base = f"leasehold/run{run}/a/".encode(), run * 1000 + 1
        self.everything = (self.base, self.base[:-1] + b"0")
        now = self.lines.current().calls[messages.RANGE](messages.look(self.base), timeout=10)
        self.model = Etcd(revision=Message(Message(now).blob(1)).number(3))
        self.told: list[tuple[bytes, int]] = []
        self.watched = Watched(self.model, lambda answer: self.told.extend(messages.news_of(answer).deleted))
        self.model.deleted = self.watched.deleted
        self.hub, self.heard = WatchHub(self.lines), Heard()
        self.watching = self.hub.watch(*self.everything)
        self.hub.begin(self.watching, self.heard)
        self.watched.ask(messages.watch(1, *self.everything))
        assert self.heard.begun.wait(TELLS_WITHIN)

    def teardown(self) -> None:
        if hasattr(self, "watching"):
            self.hub.leave(self.watching)
            self.hub.close()
            for lease in list(self.model.leases):
                self.ask(messages.REVOKE, messages.lease_id(lease))
            self.lines.close()

    def key(self, kind: int, number: int) -> bytes:
        return self.base + f"{KINDS[kind]}/{number}".encode()

    def ask(self, method: str, request: bytes) -> None:
        """The same question to both."""
        real: object
        expected: object
        try:
            real = shape(self.lines.current().calls[method](request, timeout=10))
        except grpc.RpcError as error:
            real = (error.code().name, error.details())
        try:
            expected = shape(self.model.ask(method, request, 0.0))
        except Refusal as refusal:
            expected = (refusal.code, refusal.details)
        assert real == expected

    @rule(lease=LEASES, seconds=st.integers(60, 90))
    def grant(self, lease: int, seconds: int) -> None:
        self.ask(messages.GRANT, messages.lease_grant(self.lease_base + lease, seconds))

    @rule(lease=LEASES, method=st.sampled_from([messages.KEEP_ALIVE, messages.KEEP_ALIVE, messages.REVOKE]))
    def lease(self, lease: int, method: str) -> None:
        self.ask(method, messages.lease_id(self.lease_base + lease))

    @rule(kind=NUMBERS, number=NUMBERS, several=st.booleans())
    def delete(self, kind: int, number: int, several: bool) -> None:
        key = self.key(kind, number)
        self.ask(messages.DELETE, messages.delete(key, self.everything[1]) if several else messages.delete(key))

    @rule(limit=st.integers(0, 2), newest_first=st.booleans(), keys_only=st.booleans(), age=AGES)
    def look(self, limit: int, newest_first: bool, keys_only: bool, age: int) -> None:
        before = self.model.revision - age if age else 0
        request = messages.look(
            *self.everything, limit=limit, newest_first=newest_first, keys_only=keys_only, created_before=before
        )
        self.ask(messages.RANGE, request)

    @rule(
        kind=NUMBERS,
        number=NUMBERS,
        lease=LEASES,
        condition=st.sampled_from(["none", "free", "since", "before", "created", "wrong", "modified", "stale"]),
        age=AGES,
        otherwise=st.sampled_from(["nothing", "put", "put_if_absent", "hang", "delete"]),
    )
    def transaction(self, kind: int, number: int, lease: int, condition: str, age: int, otherwise: str) -> None:
        """What the engine sends: conditions on creation, a key that is written or hung elsewhere, and looks."""
        key, lease = self.key(kind, number), self.lease_base + lease
        stored, revision = self.model.keys.get(key), max(self.model.revision - age, 1)
        created, modified = (stored.created, stored.modified) if stored is not None else (0, 0)
        conditions = {
            "none": [],
            "free": [messages.if_none_created_since(*self.everything, 0)],
            "since": [messages.if_none_created_since(*self.everything, revision)],
            "before": [messages.if_none_created_before(*self.everything, revision)],
            "created": [messages.if_created(key, created)],
            "wrong": [messages.if_created(key, created + 1)],
            "modified": [messages.if_modified(key, modified)],
            "stale": [messages.if_modified(key, modified + 1)],
        }[condition]
        look = messages.looking(messages.look(*self.everything, limit=2, newest_first=True, created_before=age))
        change = {
            "nothing": [],
            "put": [messages.put(key, b"other", lease)],
            "put_if_absent": [messages.put_if_absent(key, b"other", lease)],
            "hang": [messages.hang(key, lease)],
            "delete": [messages.deleting(messages.delete(key))],
        }[otherwise]
        then = [messages.put(key, f"{revision}".encode(), lease), messages.looking(messages.look(key)), look]
        self.ask(messages.TXN, messages.txn(conditions, then, [*change, look]))

    @invariant()
    def watches_tell_the_same(self) -> None:
        if not hasattr(self, "heard"):
            return
        give_up_at = time.monotonic() + TELLS_WITHIN
        while len(self.heard.deletions) < len(self.told) and time.monotonic() < give_up_at:
            time.sleep(0.001)
        # Those that one revision deletes are told in no certain order.
        assert sorted(self.heard.deletions) == sorted(self.told)


@pytest.fixture(autouse=True, scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdNode]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as node:
        EtcdAndModel.url = node.url
        yield node


TestEtcdAndModel = EtcdAndModel.TestCase
TestEtcdAndModel.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
