"""The simulator's model of Consul beside a real one: both get the same requests, and have to answer the same."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.support.consul_server import ConsulNode, running_consul

from leasehold.sim.consul_model import Consul
from leasehold.wires.consul import (
    Entry,
    deleting,
    deleting_as_seen,
    getting,
    getting_all,
    if_on,
    locking,
    setting,
    unlocking,
)
from leasehold.wires.consul_address import address_from_url

KEYS = st.sampled_from(["e/1", "e/2", "s/1"])
SESSIONS = st.integers(0, 3)
_runs = itertools.count(1)


class ConsulAndModel(RuleBasedStateMachine):
    """Drives both."""

    url: ClassVar[str]

    @initialize()
    def begin(self) -> None:
        endpoint = address_from_url(self.url).endpoints[0]
        self.real = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=20)
        self.base, self.model = f"leasehold/run{next(_runs)}/", Consul()
        self.sessions: dict[str, str] = {"": ""}
        self.indexes: dict[int, int] = {}
        for delay, behaviour in (("0ms", "delete"), ("0ms", "delete"), ("50000ms", "release"), ("50000ms", "delete")):
            wanted = {"Name": "x", "TTL": "60000ms", "LockDelay": delay, "Behavior": behaviour, "Checks": []}
            real, modelled = self.both("PUT", "session/create", {**wanted, "NodeChecks": []})
            self.sessions[real[1]["ID"]] = modelled[1]["ID"]
        self.ids = [one for one in self.sessions.items() if one[0]]

    def teardown(self) -> None:
        if hasattr(self, "real"):
            for real, _ in self.ids:
                self.ask_real("PUT", f"session/destroy/{real}", None)
            self.ask_real("DELETE", f"kv/{self.base}?recurse", None)
            self.real.close()

    def ask_real(self, method: str, target: str, body: object) -> tuple[int, Any, int]:
        self.real.request(method, f"/v1/{target}", b"" if body is None else json.dumps(body).encode())
        answer = self.real.getresponse()
        text, index = answer.read(), int(answer.headers.get("X-Consul-Index", "0"))
        try:
            return answer.status, json.loads(text), index
        except ValueError:
            return answer.status, text.decode(), index

    def both(self, method: str, target: str, body: object, modelled: object = None) -> list[tuple[int, Any, int]]:
        """The same to both; where sessions are named, the model's own are in `modelled`."""
        real = self.ask_real(method, target, body)
        asked = json.dumps(body if modelled is None else modelled).encode()
        answer = self.model.ask(method, f"/v1/{target}", asked, 0.0)
        assert real[0] == answer.status
        return [real, (answer.status, answer.body, answer.as_of)]

    def same_index(self, real: int, modelled: int) -> None:
        """Others use up indexes there, too; but the order is the same."""
        assert self.indexes.setdefault(real, modelled) == modelled
        assert [other for _, other in sorted(self.indexes.items())] == sorted(self.indexes.values())

    def same_key(self, real: dict[str, Any], modelled: dict[str, Any]) -> None:
        assert (real["Key"], real["Value"]) == (modelled["Key"], modelled["Value"])
        assert self.sessions[real.get("Session", "")] == modelled.get("Session", "")
        self.same_index(real["CreateIndex"], modelled["CreateIndex"])
        self.same_index(real["ModifyIndex"], modelled["ModifyIndex"])

    def seen(self, key: bytes, stale: bool) -> list[Entry]:
        """A key as both have it now, or as it was before it was changed; or one that is not there."""
        answers = self.both("GET", f"kv/{key.decode()}?consistent", None)
        indexes = [found[0]["ModifyIndex"] - stale if status == 200 else 1 for status, found, _ in answers]
        return [Entry(key, 0, index, "", b"") for index in indexes]

    @rule(data=st.data(), length=st.integers(1, 3))
    def transaction(self, data: st.DataObject, length: int) -> None:
        """Any of what the engine asks for, in any order."""
        operations: list[list[Any]] = [[], []]
        for _ in range(length):
            key = (self.base + data.draw(KEYS)).encode()
            ids = self.ids[data.draw(SESSIONS)]
            kind = data.draw(st.integers(0, 9))
            seen = self.seen(key, data.draw(st.booleans())) if kind == 9 else [Entry(key, 0, 0, "", b"")] * 2
            for side, session in enumerate(ids):
                operation = [
                    locking(key, session, b"x"),
                    locking(key, session, b"y"),
                    locking(key, session, b""),
                    unlocking(key, session, b"z"),
                    if_on(key, session),
                    setting(self.base.encode() + b"broken"),
                    getting(key),
                    getting_all(self.base.encode()),
                    deleting(key),
                    deleting_as_seen(seen[side]),
                ][kind]
                operations[side].append(json.loads(operation))
        (status, real, _), (_, modelled, _) = self.both("PUT", "txn", *operations)
        if status == 200:
            found, expected = real["Results"] or [], modelled["Results"]
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                self.same_key(one["KV"], other["KV"])
        else:
            assert [self.why(one) for one in real["Errors"]] == [self.why(one) for one in modelled["Errors"]]

    @staticmethod
    def why(error: dict[str, Any]) -> tuple[int, bool, bool]:
        """What the engine reads of a refusal."""
        return error["OpIndex"], "due to lock delay" in error["What"], "invalid session" in error["What"]

    @rule(key=KEYS, recurse=st.booleans())
    def look(self, key: str, recurse: bool) -> None:
        target = f"kv/{self.base}?recurse&consistent" if recurse else f"kv/{self.base}{key}?consistent"
        (status, real, index), (_, modelled, as_of) = self.both("GET", target, None)
        if status == 200:
            self.same_index(index, as_of)
            for one, other in zip(real, modelled, strict=True):
                self.same_key(one, other)

    @rule(session=SESSIONS, destroy=st.booleans())
    def session(self, session: int, destroy: bool) -> None:
        real, modelled = self.ids[session]
        verb = "destroy" if destroy else "renew"
        status, _, _ = self.ask_real("PUT", f"session/{verb}/{real}", None)
        assert status == self.model.ask("PUT", f"/v1/session/{verb}/{modelled}", b"", 0.0).status


@pytest.fixture(autouse=True, scope="module")
def _server() -> Iterator[ConsulNode]:
    with running_consul() as node:
        ConsulAndModel.url = node.url
        yield node


TestConsulAndModel = ConsulAndModel.TestCase
TestConsulAndModel.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
