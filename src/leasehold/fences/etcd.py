"""Fences for what is kept in etcd: the check is a condition of the transaction that writes.

    fence = EtcdFence("etcd://127.0.0.1:2379")
    fence.put("account/42", lease, b"100")
    fence.transact("account/42", lease, [Put("account/42", b"90"), Put("account/43", b"110")])

The floor of a resource is two small keys beside what it protects: the highest token seen and the highest that has
written, as decimal texts of one length, since etcd compares values byte by byte. A transaction that is accepted costs
no round trip more than one without a fence; only the first of a resource does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

from leasehold.errors import InvalidName, LeaseLost, Misuse, quoted
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.fences.steps import drive, drive_async
from leasehold.fences.store import AsyncStoreFence, BlockingStoreFence, StoreFence
from leasehold.names import check_name
from leasehold.wires import etcd_messages as messages

if TYPE_CHECKING:
    from leasehold.wires.etcd_messages import Outcome
    from leasehold.wires.etcd_store import Transaction

T = TypeVar("T")

FLOORS = "leasehold-fence/"
"""Every floor's key starts with this: nobody but a fence should be allowed to write there."""
_DIGITS = 19
_MOST_ROUNDS = 8
"""Floors never fall and are never deleted, so what others did meanwhile decides the next round."""


class Put(NamedTuple):
    """Writes a key."""

    key: str
    value: bytes


class Delete(NamedTuple):
    """Deletes a key, if it is there."""

    key: str


class Holding(Protocol):
    """The key that shows that a lease is held, as `leasehold.engines.etcd.ownership` tells it.

    It is held while this key has this create revision.
    """

    @property
    def key(self) -> bytes:
        """The key."""
        ...

    @property
    def create_revision(self) -> int:
        """The revision that created it."""
        ...


class Compare(NamedTuple):
    """One condition on a key's *value* for a transaction that you send with a client of your own."""

    key: str
    result: str
    """``"LESS"`` or ``"GREATER"`` than:"""
    value: bytes


class Conditions(NamedTuple):
    """What makes a transaction of your own a fenced one; see `EtcdFence.conditions`."""

    compare: list[Compare]
    """Add these to your conditions."""
    puts: list[Put]
    """Add these to what is done if the conditions hold."""


def _text(token: int) -> bytes:
    """Texts of one length are in the order of their numbers; the empty one stands for "never", before all others."""
    return b"" if token == NEVER else f"{token:0{_DIGITS}d}".encode()


def _number(value: bytes) -> int:
    try:
        return int(value) if value else NEVER
    except ValueError:
        raise Misuse(
            f"a floor in etcd is not a number but {quoted(value)}; keys under {FLOORS} belong to the fences"
        ) from None


def _key(key: str) -> bytes:
    if type(key) is not str or not key:
        raise InvalidName(f"a key must be text that is not empty, not {quoted(key)}")
    if key.startswith(FLOORS):
        raise InvalidName(f"key {quoted(key)} is that of a floor; keys under {FLOORS} belong to the fences")
    return key.encode()


def floor_keys(resource: str) -> tuple[str, str]:
    """Return the keys of the highest token seen, and of the highest that has written."""
    check_name(resource, what="resource")
    return f"{FLOORS}seen/{resource}", f"{FLOORS}written/{resource}"


def _operation(one: Put | Delete) -> bytes:
    if isinstance(one, Put):
        return messages.put(_key(one.key), one.value, 0)
    if isinstance(one, Delete):
        return messages.deleting(messages.delete(_key(one.key)))
    raise Misuse(f"an operation is a Put or a Delete, not {quoted(one)}")


class _Fence(StoreFence):
    """What the blocking and the asyncio fence share: everything but the waiting."""

    def __init__(self, jump_limit: int) -> None:
        self._rule = Rule(jump_limit)

    def conditions(
        self, resource: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False
    ) -> Conditions:
        """What to add to a transaction that you send with a client of your own, so that it is fenced. Sends nothing.

        Call `announce` with this token before: the floor must be there. When your conditions do not hold, `announce`
        again says whether it was the fence, by raising the reason.
        """
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        seen, written = floor_keys(resource)
        return Conditions(_comparisons(claim), [Put(seen, _text(claim.token)), Put(written, _text(claim.mark))])

    def _fenced(
        self, claim: Claim, operations: Sequence[bytes] = (), held: Holding | None = None
    ) -> Generator[Transaction, Outcome, Outcome]:
        """Carry out the operations if the claim is accepted, in one transaction with the check; or raise the reason."""
        from leasehold.wires.etcd_store import Transaction

        seen, written = (key.encode() for key in floor_keys(claim.resource))
        marks = [messages.put(seen, _text(claim.token), 0)]
        if claim.writes:
            marks.append(messages.put(written, _text(claim.mark), 0))
        holding = [] if held is None else [messages.if_created(held.key, held.create_revision)]
        known = [_condition(one) for one in _comparisons(claim)]
        looks = [messages.looking(messages.look(key, keys_only=False)) for key in (seen, written)]
        if held is not None:
            looks.append(messages.looking(messages.look(held.key)))
        first = [messages.put(seen, _text(claim.token), 0), messages.put(written, _text(claim.mark), 0)]
        transaction = Transaction([*known, *holding], [*marks, *operations], looks)
        for _ in range(_MOST_ROUNDS):
            outcome = yield transaction
            if outcome.succeeded:
                return outcome
            floor, writer = outcome.find(seen), outcome.find(written)
            refusal = claim.refusal(
                _number(floor.value) if floor else NEVER, _number(writer.value) if writer else NEVER
            )
            if refusal is not None:
                raise refusal
            if held is not None:
                _check_held(claim, held, outcome)
            if floor is None:  # etcd takes a comparison with what is not there for false
                transaction = Transaction([messages.if_created(seen, 0), *holding], [*first, *operations], looks)
            else:
                transaction = Transaction([*known, *holding], [*marks, *operations], looks)
        raise Misuse(f"etcd refused what the rule accepts; are keys under {FLOORS} written by others?")

    def _transact(
        self, claim: Claim, operations: Sequence[Put | Delete], held: Holding | None
    ) -> Generator[Transaction, Outcome, int]:
        outcome = yield from self._fenced(claim, [_operation(one) for one in operations], held)
        return outcome.revision

    def _announce(self, claim: Claim) -> Generator[Transaction, Outcome, object]:
        return self._fenced(claim)

    def _get(self, claim: Claim) -> Generator[Transaction, Outcome, bytes | None]:
        look = messages.looking(messages.look(_key(claim.resource), keys_only=False))
        found = (yield from self._fenced(claim, [look])).found[0]
        return found[0].value if found else None

    def _delete(self, claim: Claim, held: Holding | None) -> Generator[Transaction, Outcome, bool]:
        key = _key(claim.resource)
        operations = [messages.looking(messages.look(key)), messages.deleting(messages.delete(key))]
        return bool((yield from self._fenced(claim, operations, held)).found[0])

    def _floor(self, resource: str) -> Generator[Transaction, Outcome, int | None]:
        from leasehold.wires.etcd_store import Transaction

        look = messages.look(floor_keys(resource)[0].encode(), keys_only=False)
        (found,) = (yield Transaction([], [messages.looking(look)], [])).found
        return _number(found[0].value) if found else None


def _comparisons(claim: Claim) -> list[Compare]:
    """The claim, as comparisons of texts; etcd knows "less" and "greater", and no "or equal"."""
    seen, written = floor_keys(claim.resource)
    compare = [
        Compare(seen, "LESS", _text(claim.token + 1)),
        Compare(written, "LESS", _text(claim.most_written + 1)),
    ]
    if claim.lowest != NEVER:
        compare.append(Compare(seen, "GREATER", _text(claim.lowest - 1)))
    return compare


def _condition(one: Compare) -> bytes:
    made = messages.if_value_below if one.result == "LESS" else messages.if_value_above
    return made(one.key.encode(), one.value)


def _check_held(claim: Claim, held: Holding, outcome: Outcome) -> None:
    found = outcome.find(held.key)
    if found is None or found.created != held.create_revision:
        raise LeaseLost(
            claim.resource,
            "the key that showed that it was held is gone from etcd; nothing was written",
            token=claim.token,
        )


@contextlib.contextmanager
def _needs_grpc() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        raise Misuse('a fence in etcd needs gRPC: pip install "leasehold[etcd]"') from None


class EtcdFence(_Fence, BlockingStoreFence):
    """Checks tokens in transactions of an etcd cluster, in blocking code. Threads may share it.

    A resource is a key, or any other name for what a transaction changes; its floor outlives it. Every method takes the
    resource and then the token, or what carries it. A transaction is sent once: when `OutcomeUnknown` is raised it may
    have been carried out, and repeating it with the same token is harmless where doing it twice is.
    """

    def __init__(self, url: str, *, jump_limit: int = DAY) -> None:
        """Nothing is sent yet. `url` is like that of the engine: ``etcd://host:2379``, or ``etcds://…`` with TLS."""
        super().__init__(jump_limit)
        with _needs_grpc():
            from leasehold.wires.etcd_store import EtcdStore
        self._store = EtcdStore(url)

    def put(
        self,
        key: str,
        token: int | HasToken,
        value: bytes,
        *,
        held: Holding | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Write the key's value; with `held`, only while the lease is held as well."""
        self.transact(key, token, [Put(key, value)], held=held, once=once, allow_jump=allow_jump)

    def get(self, key: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return the key's value, or None; no earlier holder can write any more when it returns."""
        return self._do(self._get(self._claim(key, token, writes=False, allow_jump=allow_jump)))

    def delete(
        self,
        key: str,
        token: int | HasToken,
        *,
        held: Holding | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> bool:
        """Delete the key, and return whether it was there. The floor stays."""
        return self._do(self._delete(self._claim(key, token, writes=True, once=once, allow_jump=allow_jump), held))

    def transact(
        self,
        resource: str,
        token: int | HasToken,
        operations: Sequence[Put | Delete],
        *,
        held: Holding | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> int:
        """Carry out all operations as one write to the resource, and return the revision of etcd that it made.

        With `held` (see `Holding`) it is refused with `LeaseLost` as soon as the lease is gone from this very cluster,
        and not only when a later holder has been here.
        """
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        return self._do(self._transact(claim, operations, held))

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, steps: Generator[Transaction, Outcome, T]) -> T:
        return drive(steps, self._store.carry_out)


class AsyncEtcdFence(_Fence, AsyncStoreFence):
    """The same as `EtcdFence`, for asyncio. Tasks may share it."""

    def __init__(self, url: str, *, jump_limit: int = DAY) -> None:
        """Nothing is sent yet."""
        super().__init__(jump_limit)
        with _needs_grpc():
            from leasehold.wires.etcd_store import AsyncEtcdStore
        self._store = AsyncEtcdStore(url)

    async def put(
        self,
        key: str,
        token: int | HasToken,
        value: bytes,
        *,
        held: Holding | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Write the key's value; with `held`, only while the lease is held as well."""
        await self.transact(key, token, [Put(key, value)], held=held, once=once, allow_jump=allow_jump)

    async def get(self, key: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return the key's value, or None; no earlier holder can write any more when it returns."""
        return await self._do(self._get(self._claim(key, token, writes=False, allow_jump=allow_jump)))

    async def delete(
        self,
        key: str,
        token: int | HasToken,
        *,
        held: Holding | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> bool:
        """Delete the key, and return whether it was there. The floor stays."""
        claim = self._claim(key, token, writes=True, once=once, allow_jump=allow_jump)
        return await self._do(self._delete(claim, held))

    async def transact(
        self,
        resource: str,
        token: int | HasToken,
        operations: Sequence[Put | Delete],
        *,
        held: Holding | None = None,
        once: bool = False,
        allow_jump: bool = False,
    ) -> int:
        """Carry out all operations as one write to the resource; see `EtcdFence.transact`."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        return await self._do(self._transact(claim, operations, held))

    async def close(self) -> None:
        """Close the connection."""
        self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, steps: Generator[Transaction, Outcome, T]) -> T:
        return await drive_async(steps, self._store.carry_out)
