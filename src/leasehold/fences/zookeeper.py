"""Fences for what is kept in ZooKeeper: the check is a part of the `multi` that writes.

    fence = ZooKeeperFence("zookeeper://127.0.0.1:2181")
    fence.put("/account/42", lease, b"100")
    fence.transact("/account/42", lease, [Set("/account/42", b"90"), Set("/account/43", b"110")])

The floor of a resource is a node of its own. It is read, judged, and then set (or checked) at the version that was
read, in one `multi` with the write: if anybody else's token has been there meanwhile, nothing at all is carried out and
the floor is read again. That is one round trip more than the write alone.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Self, TypeVar
from urllib.parse import quote

from leasehold.errors import InvalidName, Misuse, TokenJump, VersionConflict, quoted
from leasehold.fences.rule import DAY, NEVER, Claim, HasToken, Rule
from leasehold.fences.steps import drive, drive_async
from leasehold.fences.store import AsyncStoreFence, BlockingStoreFence, StoreFence
from leasehold.names import check_name
from leasehold.wires import zookeeper_messages as messages
from leasehold.wires.zookeeper_messages import BAD_VERSION, NO_NODE, NODE_EXISTS, NOT_EMPTY, OK, Reply, Request
from leasehold.wires.zookeeper_store import AsyncZooKeeperStore, ZooKeeperStore

T = TypeVar("T")
Steps = Generator[list[Request], list[Reply], T]

FLOORS = "leasehold-fence"
"""The folder of the floors: nobody but a fence should be allowed to write there."""
_MOST_ROUNDS = 100
"""Each round that fails is one in which another's was carried out."""


class Set(NamedTuple):
    """Replaces what a node keeps; given a version, only if it was not set since."""

    path: str
    data: bytes
    version: int | None = None


class Create(NamedTuple):
    """Creates a node, which must not be there; its parent must."""

    path: str
    data: bytes


class Delete(NamedTuple):
    """Deletes a node that has no children; given a version, only if it was not set since."""

    path: str
    version: int | None = None


Operation = Set | Create | Delete


class _Refused(Exception):
    """One of the caller's own operations was refused."""

    def __init__(self, number: int, error: int) -> None:
        super().__init__()
        self.number, self.error = number, error


class _Fence(StoreFence):
    """What the blocking and the asyncio fence share: everything but the waiting."""

    def __init__(self, store: ZooKeeperStore | AsyncZooKeeperStore, jump_limit: int) -> None:
        self._rule, self._ways = Rule(jump_limit), store

    # Paths

    def floor_path(self, resource: str) -> str:
        """Return the path of the node that keeps a resource's floor."""
        check_name(resource, what="resource")
        name = resource.replace(".", "%2E") if set(resource) == {"."} else quote(resource, safe="")
        return f"{self._ways.chroot}/{FLOORS}/{name}"

    def _path(self, path: str) -> str:
        if type(path) is not str or not path.startswith("/") or path.endswith("/") or "//" in path:
            raise InvalidName(f"a path begins with '/', has no empty part and no '/' at its end, unlike {quoted(path)}")
        if path == f"/{FLOORS}" or path.startswith(f"/{FLOORS}/"):
            raise InvalidName(f"path {quoted(path)} is that of a floor; what is under /{FLOORS} belongs to the fences")
        return self._ways.chroot + path

    def _request(self, one: Operation) -> Request:
        match one:
            case Set(path, data, version):
                return messages.set_data(self._path(path), data, -1 if version is None else version)
            case Create(path, data):
                return messages.create(self._path(path), data, self._ways.permissions, 0)
            case Delete(path, version):
                return messages.delete(self._path(path), -1 if version is None else version)
        raise Misuse(f"an operation is a Set, a Create or a Delete, not {quoted(one)}")

    # Steps

    def _fenced(
        self, claim: Claim, operations: Sequence[Request] = (), after: Sequence[Request] = ()
    ) -> Steps[list[Reply]]:
        """Carry out the operations if the claim is accepted, in one `multi` with the check; or raise the reason.

        Returns the replies to what is asked `after` it, on the same connection.
        """
        path, surely = self.floor_path(claim.resource), False
        for _ in range(_MOST_ROUNDS):
            # A server may be behind the others. What it tells wrongly is noticed when the leader looks at the version.
            reading = [messages.sync(path)] if surely else []
            found = (yield [*reading, messages.get_data(path)])[-1]
            floor, version = self._marks(found)
            refusal = claim.refusal(*floor)
            if refusal is not None:
                if isinstance(refusal, TokenJump) and not surely:
                    surely = True
                    continue
                raise refusal
            raised = (claim.token, max(floor[1], claim.mark))
            if version is None:
                yield from self._make_folder()
                first = messages.create(path, _content(*raised), self._ways.permissions, 0)
            elif raised == floor:
                first = messages.check(path, version)
            else:
                first = messages.set_data(path, _content(*raised), version)
            answer, *rest = yield [messages.multi([first, *operations]), *after]
            number, error = messages.refused_part(answer)
            if error == OK:
                return rest
            if number > 0:
                raise _Refused(number - 1, error)
            if error not in (BAD_VERSION, NODE_EXISTS, NO_NODE):
                raise self._ways.refused(error, "raising a floor")
            surely = True
        raise VersionConflict(f"others changed the floor of {quoted(claim.resource)} {_MOST_ROUNDS} times in a row")

    def _marks(self, reply: Reply) -> tuple[tuple[int, int], int | None]:
        if reply.error == NO_NODE:
            return (NEVER, NEVER), None
        if reply.error != OK:
            raise self._ways.refused(reply.error, "reading a floor")
        data, stat = messages.data_in(reply.body)
        try:
            seen, written = map(int, data.split())
        except ValueError:
            raise Misuse(
                f"a floor in ZooKeeper is not two numbers but {quoted(data)}; /{FLOORS} belongs to the fences"
            ) from None
        return (seen, written), stat.version

    def _make_folder(self) -> Steps[None]:
        """Have the folder of the floors."""
        parts = self._ways.chroot.split("/")[1:]
        roots = ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]
        folders = [*roots, f"{self._ways.chroot}/{FLOORS}"]
        replies = yield [messages.create(path, b"", messages.OPEN, 0) for path in folders]
        if replies[-1].error not in (OK, NODE_EXISTS):
            raise self._ways.refused(replies[-1].error, f"creating /{FLOORS}")

    def _transact(self, claim: Claim, operations: Sequence[Operation]) -> Steps[None]:
        try:
            yield from self._fenced(claim, [self._request(one) for one in operations])
        except _Refused as refused:
            raise self._meaning(operations[refused.number], refused.error) from None

    def _meaning(self, one: Operation, error: int) -> Exception:
        words = {
            BAD_VERSION: "it was set by others since",
            NO_NODE: "there is no such node, or its parent is not there",
            NODE_EXISTS: "there is such a node already",
            NOT_EMPTY: "it has children",
        }
        if error not in words:
            return self._ways.refused(error, f"writing to {quoted(one.path)}")
        return VersionConflict(f"{type(one).__name__} of {quoted(one.path)}: {words[error]}; nothing was written")

    def _put(self, claim: Claim, data: bytes) -> Steps[None]:
        """Set the node, or create it."""
        one: Operation = Set(claim.resource, data)
        for _ in range(_MOST_ROUNDS):
            try:
                yield from self._fenced(claim, [self._request(one)])
                return
            except _Refused as refused:
                if isinstance(one, Set) and refused.error == NO_NODE:
                    one = Create(claim.resource, data)
                elif isinstance(one, Create) and refused.error == NODE_EXISTS:
                    one = Set(claim.resource, data)
                else:
                    raise self._meaning(one, refused.error) from None
        raise VersionConflict(f"others created and deleted {quoted(claim.resource)} {_MOST_ROUNDS} times in a row")

    def _delete(self, claim: Claim) -> Steps[bool]:
        """A node that is not there needs no deletion, but the floor rises all the same."""
        one = Delete(claim.resource)
        try:
            yield from self._fenced(claim, [self._request(one)])
        except _Refused as refused:
            if refused.error != NO_NODE:
                raise self._meaning(one, refused.error) from None
        else:
            return True
        yield from self._fenced(claim)
        return False

    def _announce(self, claim: Claim) -> Steps[object]:
        return self._fenced(claim)

    def _get(self, claim: Claim) -> Steps[bytes | None]:
        (reply,) = yield from self._fenced(claim, after=[messages.get_data(self._path(claim.resource))])
        if reply.error == NO_NODE:
            return None
        if reply.error != OK:
            raise self._ways.refused(reply.error, "reading a node")
        return messages.data_in(reply.body)[0]

    def _floor(self, resource: str) -> Steps[int | None]:
        path = self.floor_path(resource)
        _, reply = yield [messages.sync(path), messages.get_data(path)]
        (seen, _), version = self._marks(reply)
        return None if version is None else seen


def _content(seen: int, written: int) -> bytes:
    return f"{seen} {written}".encode()


class ZooKeeperFence(_Fence, BlockingStoreFence):
    """Checks tokens in `multi` operations of a ZooKeeper ensemble, in blocking code. Threads may share it.

    A resource is a node, or any other name for what a `multi` changes; its floor outlives it. Every method takes the
    resource and then the token, or what carries it. When `OutcomeUnknown` is raised the write may have been carried
    out, and repeating it with the same token is harmless where doing it twice is.
    """

    def __init__(self, url: str, *, jump_limit: int = DAY) -> None:
        """Nothing is sent yet. `url` is like that of the engine; a path at its end stands before all paths."""
        self._store = ZooKeeperStore(url)
        super().__init__(self._store, jump_limit)

    def put(
        self, path: str, token: int | HasToken, data: bytes, *, once: bool = False, allow_jump: bool = False
    ) -> None:
        """Set what the node keeps, or create it; its parent must be there."""
        self._do(self._put(self._claim(path, token, writes=True, once=once, allow_jump=allow_jump), data))

    def get(self, path: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return what the node keeps, or None; no earlier holder can write any more when it returns."""
        return self._do(self._get(self._claim(path, token, writes=False, allow_jump=allow_jump)))

    def delete(self, path: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete the node, and return whether it was there. The floor stays."""
        return self._do(self._delete(self._claim(path, token, writes=True, once=once, allow_jump=allow_jump)))

    def transact(
        self,
        resource: str,
        token: int | HasToken,
        operations: Sequence[Operation],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Carry out all operations as one write to the resource, or none.

        Raises `VersionConflict` when ZooKeeper refuses one of them for what the nodes are like.
        """
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        self._do(self._transact(claim, operations))

    def close(self) -> None:
        """End the session with the ensemble."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, steps: Steps[T]) -> T:
        return drive(steps, self._store.ask)


class AsyncZooKeeperFence(_Fence, AsyncStoreFence):
    """The same as `ZooKeeperFence`, for the tasks of one event loop."""

    def __init__(self, url: str, *, jump_limit: int = DAY) -> None:
        """Nothing is sent yet."""
        self._store = AsyncZooKeeperStore(url)
        super().__init__(self._store, jump_limit)

    async def put(
        self, path: str, token: int | HasToken, data: bytes, *, once: bool = False, allow_jump: bool = False
    ) -> None:
        """Set what the node keeps, or create it; its parent must be there."""
        await self._do(self._put(self._claim(path, token, writes=True, once=once, allow_jump=allow_jump), data))

    async def get(self, path: str, token: int | HasToken, *, allow_jump: bool = False) -> bytes | None:
        """Return what the node keeps, or None; no earlier holder can write any more when it returns."""
        return await self._do(self._get(self._claim(path, token, writes=False, allow_jump=allow_jump)))

    async def delete(self, path: str, token: int | HasToken, *, once: bool = False, allow_jump: bool = False) -> bool:
        """Delete the node, and return whether it was there. The floor stays."""
        return await self._do(self._delete(self._claim(path, token, writes=True, once=once, allow_jump=allow_jump)))

    async def transact(
        self,
        resource: str,
        token: int | HasToken,
        operations: Sequence[Operation],
        *,
        once: bool = False,
        allow_jump: bool = False,
    ) -> None:
        """Carry out all operations as one write to the resource, or none; see `ZooKeeperFence.transact`."""
        claim = self._claim(resource, token, writes=True, once=once, allow_jump=allow_jump)
        await self._do(self._transact(claim, operations))

    async def close(self) -> None:
        """End the session with the ensemble."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, steps: Steps[T]) -> T:
        return await drive_async(steps, self._store.ask)
