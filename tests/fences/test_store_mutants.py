"""The scenarios find what is wrong in the fences of stores, tables and services, in both worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.fences import scenarios
from tests.fences.guards import Guard
from tests.fences.scenarios import Scenario, failing
from tests.fences.store_guards import BUCKET, S3Guard

from leasehold.errors import StaleToken
from leasehold.fences import etcd, gcs, http, s3, trigger, zookeeper
from leasehold.fences.aws import Request
from leasehold.fences.column import _Column
from leasehold.fences.dynamodb import _Fence as DynamoDB
from leasehold.fences.rule import NEVER, Claim
from leasehold.wires import zookeeper_messages

Patch = pytest.MonkeyPatch
FreshOf = Callable[[str], Callable[[], Guard]]
Plant = Callable[[Patch], None]


def wrapped(patch: Patch, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Have what a function returns changed."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **more: change(right(*given, **more)))


# etcd


def no_look_at_the_floor(patch: Patch) -> None:
    wrapped(patch, etcd, "_comparisons", lambda made: [one for one in made if "/seen/" not in one.key])


def no_look_at_the_writer(patch: Patch) -> None:
    wrapped(patch, etcd, "_comparisons", lambda made: [one for one in made if "/written/" not in one.key])


def texts_of_any_length(patch: Patch) -> None:
    patch.setattr(etcd, "_text", lambda token: b"" if token == NEVER else str(token).encode())


def less_than_the_token_itself(patch: Patch) -> None:
    right = etcd._comparisons

    def wrong(claim: Claim) -> Any:
        one, *rest = right(claim)
        return [one._replace(value=etcd._text(claim.token)), *rest]

    patch.setattr(etcd, "_comparisons", wrong)


# ZooKeeper


def any_version_of_the_floor(patch: Patch) -> None:
    setting, checking = zookeeper_messages.set_data, zookeeper_messages.check
    patch.setattr(zookeeper_messages, "set_data", lambda path, data, _version=-1: setting(path, data))
    patch.setattr(zookeeper_messages, "check", lambda path, _version: checking(path, -1))


def the_floor_is_not_written(patch: Patch) -> None:
    right = zookeeper._content
    patch.setattr(zookeeper, "_content", lambda _seen, written: right(0, written))


def every_call_is_a_write(patch: Patch) -> None:
    patch.setattr(Claim, "mark", property(lambda claim: claim.token))


# S3


def without_a_condition(patch: Patch) -> None:
    right = Request

    def wrong(operation: str, arguments: dict[str, Any], *more: Any) -> Any:
        kept = {name: value for name, value in arguments.items() if name not in ("IfMatch", "IfNoneMatch")}
        return right(operation, kept, *more)

    patch.setattr(s3, "Request", wrong)


def a_read_leaves_the_floor(patch: Patch) -> None:
    right = s3._framed
    patch.setattr(s3, "_framed", lambda _seen, written, payload: right(max(written, 0), written, payload))


# Google Cloud Storage


def without_generations(patch: Patch) -> None:
    patch.setattr(gcs, "_condition", lambda _found: {})


def a_mark_leaves_the_floor(patch: Patch) -> None:
    right = gcs._marks
    patch.setattr(gcs, "_marks", lambda _seen, written, deleted: right(max(written, 0), written, deleted=deleted))


# DynamoDB


def changed_update(change: Callable[[dict[str, Any]], object]) -> Plant:
    def plant(patch: Patch) -> None:
        def changed(made: dict[str, Any]) -> dict[str, Any]:
            before = made["ConditionExpression"]
            change(made)
            assert made["ConditionExpression"] != before
            return made

        wrapped(patch, DynamoDB, "_update", changed)

    return plant


def replaced(key: str, right: str, wrong: str) -> Callable[[dict[str, Any]], object]:
    return lambda made: made.update({key: made[key].replace(right, wrong)})


# Tables and services


def rows_do_not_ask(patch: Patch) -> None:
    right = _Column.__init__

    def wrong(self: _Column, *given: Any, **more: Any) -> None:
        right(self, *given, **more)
        self._seen = "1 = 1"

    patch.setattr(_Column, "__init__", wrong)


def rows_do_not_keep_the_floor(patch: Patch) -> None:
    patch.setattr(_Column, "_marks", lambda self, _claim: f"{self._column} = {self._column}")


def requests_go_on_as_they_are(patch: Patch) -> None:
    patch.setattr(http._Middleware, "_claimed", lambda *_: None)


def the_header_is_not_read(patch: Patch) -> None:
    patch.setattr(http, "read_token", lambda *_: 10**18)


MUTANTS: list[tuple[str, Plant, Scenario]] = [
    ("etcd", no_look_at_the_floor, scenarios.a_fenced_read_raises_the_floor),
    ("etcd", no_look_at_the_writer, scenarios.once_means_one_write_per_token),
    ("etcd", texts_of_any_length, scenarios.a_higher_token_is_accepted_and_raises_the_floor),
    ("etcd", less_than_the_token_itself, scenarios.an_equal_token_is_accepted),
    ("etcd", every_call_is_a_write, scenarios.once_means_one_write_per_token),
    ("zookeeper", any_version_of_the_floor, scenarios.the_same_bytes_do_not_hide_a_later_holder),
    ("zookeeper", the_floor_is_not_written, scenarios.a_lower_token_is_refused_with_both_numbers),
    ("zookeeper", every_call_is_a_write, scenarios.once_means_one_write_per_token),
    ("s3", without_a_condition, scenarios.a_stale_write_never_lands_after_a_later_one),
    ("s3", a_read_leaves_the_floor, scenarios.a_fenced_read_raises_the_floor),
    ("gcs", without_generations, scenarios.a_stale_write_never_lands_after_a_later_one),
    ("gcs", a_mark_leaves_the_floor, scenarios.a_fenced_read_raises_the_floor),
    (
        "dynamodb",
        changed_update(replaced("ConditionExpression", "OR #seen <= :token", "OR :token = :token")),
        scenarios.a_fenced_read_raises_the_floor,
    ),
    (
        "dynamodb",
        changed_update(replaced("ConditionExpression", "#seen <= :token", "#seen < :token")),
        scenarios.an_equal_token_is_accepted,
    ),
    (
        "dynamodb",
        changed_update(replaced("ConditionExpression", "#written <= :most_written", "#written <> :most_written")),
        scenarios.once_means_one_write_per_token,
    ),
    ("column psycopg postgresql", rows_do_not_ask, scenarios.a_lower_token_is_refused_with_both_numbers),
    (
        "column psycopg postgresql",
        rows_do_not_keep_the_floor,
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
    ("http", requests_go_on_as_they_are, scenarios.a_lower_token_is_refused_with_both_numbers),
    ("http", the_header_is_not_read, scenarios.a_lower_token_is_refused_with_both_numbers),
]
BOTH = [(f"{kind}{world}", plant, finder) for kind, plant, finder in MUTANTS for world in ("", " asyncio")]


@pytest.mark.parametrize(("kind", "plant", "finder"), BOTH)
def test_a_wrong_fence_is_found(
    kind: str, plant: Plant, finder: Scenario, fresh_of: FreshOf, monkeypatch: Patch
) -> None:
    guard = fresh_of(kind)()  # made, with its server, before anything is wrong
    guard.close()
    plant(monkeypatch)
    assert finder in failing(fresh_of(kind), only=finder)


# The trigger lives in the database


TRIGGERS = {
    "a lower token passes": ("IF mine < seen THEN", "IF false THEN", scenarios.a_fenced_read_raises_the_floor),
    "an equal one is refused": ("IF mine < seen THEN", "IF mine <= seen THEN", scenarios.an_equal_token_is_accepted),
    "once is ignored": ("IF once AND wrote >= mine", "IF false", scenarios.once_means_one_write_per_token),
    "the floor stays": (
        "SET token = mine, written = mine",
        "SET token = token",
        scenarios.a_higher_token_is_accepted_and_raises_the_floor,
    ),
}


@pytest.mark.parametrize("world", ["", " asyncio"])
@pytest.mark.parametrize(("right", "wrong", "finder"), TRIGGERS.values(), ids=TRIGGERS)
def test_a_wrong_trigger_is_found(
    right: str,
    wrong: str,
    finder: Scenario,
    world: str,
    fresh_of: FreshOf,
    sql_url_of: Callable[[str], str],
) -> None:
    ddl = trigger.install_sql("held_thing", column="id")
    assert ddl.count(right) == 1
    with psycopg.connect(sql_url_of("postgresql"), autocommit=True) as database:
        try:
            database.execute(ddl.replace(right, wrong).encode())
            assert finder in failing(fresh_of(f"trigger{world}"), only=finder)
        finally:
            database.execute(ddl.encode())
    assert failing(fresh_of(f"trigger{world}"), only=finder) == set()


# The trap of ETags


class TokenInMetadata(S3Guard):
    """Keeps its token where the ETag does not speak of it, and relies on the ETag."""

    def write(self, token: int, value: str, *, once: bool = False, between: Callable[[], object] | None = None) -> None:
        condition = {"IfNoneMatch": "*"}
        try:
            found = self.past.head_object(Bucket=BUCKET, Key=self.resource)
        except self.past.exceptions.ClientError:
            found = None
        if found is not None:
            condition = {"IfMatch": found["ETag"]}
            if int(found["Metadata"]["token"]) > token:
                raise StaleToken(self.resource, token=token, seen=int(found["Metadata"]["token"]))
        if between is not None:
            between()
        try:
            self.past.put_object(
                Bucket=BUCKET, Key=self.resource, Body=value.encode(), Metadata={"token": str(token)}, **condition
            )
        except self.past.exceptions.ClientError as error:
            raise StaleToken(self.resource, token=token, seen=token + 1) from error

    def peek(self) -> str | None:
        body: bytes = self.past.get_object(Bucket=BUCKET, Key=self.resource)["Body"].read()
        return body.decode()

    def floor(self) -> int | None:
        return int(self.past.head_object(Bucket=BUCKET, Key=self.resource)["Metadata"]["token"])


def test_a_token_in_metadata_is_defeated_by_equal_bytes(fresh_of: FreshOf) -> None:
    def fresh() -> Guard:
        right = fresh_of("s3")()
        assert isinstance(right, S3Guard)
        right.close()
        return TokenInMetadata(right.address, right.resource)

    assert failing(fresh, only=scenarios.a_stale_write_never_lands_after_a_later_one) == set(), "it looks right"
    trap = scenarios.the_same_bytes_do_not_hide_a_later_holder
    assert failing(fresh, only=trap) == {trap}
