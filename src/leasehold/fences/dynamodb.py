"""Fences for what is kept in DynamoDB: the check is one item of the transaction that writes.

    fence = DynamoDBFence(boto3.client("dynamodb"))
    fence.create()                                                           # the table of floors, once
    fence.transact("account/42", lease, [{"Update": {"TableName": "account", …}}])

The condition on the floor and all of your own items are carried out together or not at all, in one request.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from leasehold.errors import Misuse, quoted
from leasehold.fences.aws import Answer, Request, ask, ask_async, check_client
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.fences.steps import drive, drive_async
from leasehold.fences.store import AsyncStoreFence, BlockingStoreFence, StoreFence

T = TypeVar("T")
Steps = Generator[Request, Answer, T]

TABLE = "leasehold_fence"
_REFUSED = frozenset({"ConditionalCheckFailedException"})
_CANCELLED = frozenset({"TransactionCanceledException"})
_MOST_ROUNDS = 8
"""Floors never fall and are never deleted, so what others did meanwhile decides the next round."""


class _Fence(StoreFence):
    """What the blocking and the asyncio fence share: everything but the waiting."""

    _ASYNC: bool

    def __init__(self, client: Any, *, table: str = TABLE, jump_limit: int = DAY) -> None:
        """Nothing is sent yet. `table` keeps the floors; `create` makes it."""
        check_client(client, "transact_write_items", of="DynamoDB", asyncio=self._ASYNC, fence="DynamoDBFence")
        self._client, self._table, self._rule = client, table, Rule(jump_limit)

    def _update(self, claim: Claim) -> dict[str, Any]:
        """Raises the floor, if the claim is accepted."""
        numbers = {":token": claim.token, ":most_written": claim.most_written}
        fits = "(attribute_not_exists(#seen) OR #seen <= :token)"
        if claim.lowest != NEVER:
            fits, numbers[":lowest"] = "#seen BETWEEN :lowest AND :token", claim.lowest
        return {
            "TableName": self._table,
            "Key": {"resource": {"S": claim.resource}},
            "UpdateExpression": "SET #seen = :token" + (", #written = :token" if claim.writes else ""),
            "ConditionExpression": f"{fits} AND (attribute_not_exists(#written) OR #written <= :most_written)",
            "ExpressionAttributeNames": {"#seen": "seen", "#written": "written"},
            "ExpressionAttributeValues": {name: {"N": str(number)} for name, number in numbers.items()},
        }

    def _transact(self, claim: Claim, items: Sequence[Mapping[str, Any]]) -> Steps[None]:
        if any(self._table in (part.get("TableName") for part in one.values()) for one in items):
            raise Misuse(f"table {quoted(self._table)} belongs to the fences; write to tables of your own")
        arguments = {"TransactItems": [{"Update": self._update(claim)}, *items]}
        for _ in range(_MOST_ROUNDS):
            answer = yield Request("transact_write_items", arguments, _CANCELLED)
            if answer.error is None:
                return
            reasons = [reason.get("Code") for reason in answer.fields.get("CancellationReasons", [])]
            if reasons[:1] != ["ConditionalCheckFailed"]:  # one of the caller's own items, or the service itself
                raise answer.error
            yield from self._refuse(claim)
        raise self._nonsense()

    def _announce(self, claim: Claim) -> Steps[None]:
        for _ in range(_MOST_ROUNDS):
            if (yield Request("update_item", self._update(claim), _REFUSED)).code is None:
                return
            yield from self._refuse(claim)
        raise self._nonsense()

    def _marks(self, resource: str) -> Steps[tuple[int, int]]:
        key = {"resource": {"S": resource}}
        arguments = {"TableName": self._table, "Key": key, "ConsistentRead": True}
        item = (yield Request("get_item", arguments)).fields.get("Item", {})
        seen, written = (int(item[name]["N"]) if name in item else NEVER for name in ("seen", "written"))
        return seen, written

    def _refuse(self, claim: Claim) -> Steps[None]:
        """Raise why the floor refused; return if it would accept by now."""
        refusal = claim.refusal(*(yield from self._marks(claim.resource)))
        if refusal is not None:
            raise refusal

    def _nonsense(self) -> Misuse:
        return Misuse(f"DynamoDB refused what the rule accepts; is table {quoted(self._table)} written by others?")

    def _floor(self, resource: str) -> Steps[int | None]:
        seen, _ = yield from self._marks(self._claim(resource, 0, writes=False, allow_jump=False).resource)
        return None if seen == NEVER else seen

    def _create(self) -> Steps[None]:
        arguments = {
            "TableName": self._table,
            "AttributeDefinitions": [{"AttributeName": "resource", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "resource", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        yield Request("create_table", arguments, frozenset({"ResourceInUseException"}))


class DynamoDBFence(_Fence, BlockingStoreFence):
    """Checks tokens in transactions of DynamoDB, by a client of boto3, which threads may share.

    A resource is any name for what your items are about; its floor outlives them. Errors of DynamoDB itself, such as a
    condition of your own that does not hold or a ``TransactionConflict``, come to you unchanged; nothing was written.
    A read that follows `announce` must be a consistent one (``ConsistentRead=True``).
    """

    _ASYNC = False

    def create(self) -> None:
        """Make the table of floors, unless it is there, and wait until it can be used."""
        self._do(self._create())
        self._client.get_waiter("table_exists").wait(TableName=self._table)

    def transact(
        self,
        resource: str,
        token: int | HasToken,
        items: Sequence[Mapping[str, Any]],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Carry out your items (as for ``transact_write_items``, 99 at most) as one write to the resource."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        self._do(self._transact(claim, items))

    def _do(self, steps: Steps[T]) -> T:
        return drive(steps, lambda request: ask(self._client, request))


class AsyncDynamoDBFence(_Fence, AsyncStoreFence):
    """The same as `DynamoDBFence`, for a client of aiobotocore."""

    _ASYNC = True

    async def create(self) -> None:
        """Make the table of floors, unless it is there, and wait until it can be used."""
        await self._do(self._create())
        await self._client.get_waiter("table_exists").wait(TableName=self._table)

    async def transact(
        self,
        resource: str,
        token: int | HasToken,
        items: Sequence[Mapping[str, Any]],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Carry out your items (as for ``transact_write_items``, 99 at most) as one write to the resource."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        await self._do(self._transact(claim, items))

    async def _do(self, steps: Steps[T]) -> T:
        return await drive_async(steps, lambda request: ask_async(self._client, request))
