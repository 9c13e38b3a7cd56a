"""`Idempotency` and `AsyncIdempotency`: run an operation under its key, or get what an earlier run of it gave."""

from __future__ import annotations

import functools
import inspect
import json
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar

from leasehold import watching
from leasehold.core.worlds import run_blocking
from leasehold.errors import (
    FailedBefore,
    InProgress,
    KeyReused,
    Misuse,
    OutcomeUnknown,
    Quarantined,
    StaleToken,
    quoted,
)
from leasehold.keeping import log
from leasehold.names import check_name, check_ttl, check_wait
from leasehold.patterns.idempotency.records import (
    LARGEST_RESULT,
    Change,
    Claim,
    Record,
    Store,
    fingerprint_of,
    packed,
    unpacked,
)

Policy = Literal["release", "replay", "quarantine"]
"""What becomes of the key when its operation raises: the next caller runs it again; the failure is its result and is
given again; or nobody runs it until somebody has looked."""
Policies = Mapping[type[Exception], Policy]
STRIPE: Final[Policies] = {Exception: "replay"}
"""As Stripe does: once the operation has begun, its failure is its result."""
DAY: Final = 24 * 3600.0
LONGEST_KEEP: Final = 3660 * DAY
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
CLAIM_TRIES: Final = 3
MOST_TEXT: Final = 500
"""Characters of a failure's text that are kept."""

P = ParamSpec("P")
R = TypeVar("R")
StoreT = TypeVar("StoreT", bound=Store)


class _Claimed:
    """One run of an operation: the one whose token is the highest for its key."""

    def __init__(self, keys: _Keys[Any], claim: Claim, record: Record) -> None:
        self._keys, self._claim, self._record = keys, claim, record
        self._over = False
        self._on: Any = None

    @property
    def key(self) -> str:
        """The key."""
        return self._claim.key

    @property
    def token(self) -> int:
        """Greater than that of every earlier run of this key: a fence for what the operation writes."""
        return self._record.token

    @property
    def point(self) -> str | None:
        """The last recovery point that an earlier run, which crashed, has reached; None if it reached none."""
        return self._record.point or None

    @property
    def data(self) -> Any:
        """What was left at that recovery point."""
        return json.loads(self._record.data or "null")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {quoted(self.key)} token={self.token} point={quoted(self.point)}>"

    async def _change(self, change: Change) -> None:
        if not await self._keys.store.change(self._claim, self.token, change):
            raise await self._refusal()

    async def _refusal(self) -> StaleToken:
        """Somebody took over: this run was taken for crashed."""
        now = await self._keys.store.claim(self._claim._replace(run=self._record.run))
        return self._stale(now.token)

    def _may_be_undone(self) -> bool:
        """Whether the result was stored in a transaction of the caller's own that is over: it may be rolled back.

        While it is open nothing is said about the run: that would wait for the transaction, which may wait for this.
        """
        if self._on is None:
            return False
        if self._keys.store.is_open_on(self._on):
            log().warning(
                "%r has failed, and the transaction that has its result is open: it counts as under way", self
            )
            return False
        return True

    def _stale(self, seen: int) -> StaleToken:
        self._over = True
        seen = max(seen, self.token + 1)
        return watching.refused(StaleToken(f"idempotency key {self.key}", token=self.token, seen=seen))

    def _completed(self, result: object) -> Change:
        return Change("done", result=packed(result, self._keys.largest_result))

    def _reached(self, point: str, data: object) -> Change:
        check_name(point, what="recovery point")
        text = packed(data, self._keys.largest_result)
        if text[:1] != "j":
            raise Misuse("what is left at a recovery point is JSON, not bytes")
        return Change("running", lease=self._claim.lease, point=point, data=text[1:])


class Run(_Claimed):
    """One run of an operation, for blocking code."""

    def renew(self) -> None:
        """Say that the run is alive; raises `StaleToken` when another one has taken over."""
        run_blocking(self._change(Change("running", lease=self._claim.lease)))

    def reach(self, point: str, data: object = None) -> None:
        """Note that the run has come this far, for one that must go on after a crash; also a sign of life."""
        run_blocking(self._change(self._reached(point, data)))

    def complete(self, result: object, *, on: Any) -> None:
        """Store the result in the transaction that is open on your own connection, so that both commit or neither.

        Afterwards return the same result from the operation.
        """
        store = self._keys.store
        if not hasattr(store, "change_on"):
            raise Misuse("only a store in a SQL database can take part in your transaction")
        if not store.change_on(on, self._claim, self.token, self._completed(result)):
            # Nothing is asked over another connection: it might wait for this transaction.
            raise self._stale(store.token_on(on, self._claim))
        self._over, self._on = True, on


class AsyncRun(_Claimed):
    """One run of an operation, for async code; see `Run`."""

    async def renew(self) -> None:
        """Say that the run is alive; raises `StaleToken` when another one has taken over."""
        await self._change(Change("running", lease=self._claim.lease))

    async def reach(self, point: str, data: object = None) -> None:
        """Note that the run has come this far, for one that must go on after a crash; also a sign of life."""
        await self._change(self._reached(point, data))

    async def complete(self, result: object, *, on: Any) -> None:
        """Store the result in the transaction that is open on your own async connection; see `Run.complete`."""
        store = self._keys.store
        if not hasattr(store, "change_on"):
            raise Misuse("only a store in a SQL database can take part in your transaction")
        if not await store.change_on(on, self._claim, self.token, self._completed(result)):
            raise self._stale(await store.token_on(on, self._claim))
        self._over, self._on = True, on


class _Keys(Generic[StoreT]):
    """What both worlds have in common."""

    def __init__(
        self,
        store: StoreT,
        *,
        scope: str,
        lease: float = 60.0,
        keep: float = DAY,
        on_error: Policy | Policies = "release",
        largest_result: int = LARGEST_RESULT,
    ) -> None:
        """Keep the keys of one `scope` (a tenant, a user, an endpoint): results are never given across scopes.

        A run is taken for crashed after `lease` seconds without a word, and its key is kept for `keep` seconds.
        """
        self.store = store
        self.scope = check_name(scope, what="scope")
        self._lease = check_ttl(lease, what="lease")
        self._keep = check_wait(keep, what="keep")
        if not self._lease <= self._keep:
            raise Misuse(f"keep ({keep:g} s) must be at least as long as lease ({lease:g} s)")
        if type(largest_result) is not int or not 0 < largest_result <= 8 * 1024 * 1024:
            raise Misuse(f"largest_result is a number of bytes from 1 to 8388608, not {quoted(largest_result)}")
        self.largest_result = largest_result
        self._policies = _checked_policies(on_error)

    def _claim_for(self, key: str, payload: object) -> Claim:
        check_name(key, what="key")
        return Claim(self.scope, key, fingerprint_of(payload), secrets.token_hex(16), self._lease, self._keep)

    def _to_forget(self, key: str, because: str) -> Claim:
        check_name(because, what="because")
        log().warning("idempotency key %s of %s is forgotten because %s", ascii(key), ascii(self.scope), ascii(because))
        return self._claim_for(key, None)

    async def _claimed(self, claim: Claim, wait: float) -> Record:
        """The record as soon as it is ours, or has a result; raises what stands against it."""
        give_up_at = time.monotonic() + check_wait(wait)
        pause = FIRST_PAUSE
        while True:
            record = await self._try_claim(claim)
            if record.run == claim.run:
                return record
            if record.fingerprint and claim.fingerprint and record.fingerprint != claim.fingerprint:
                watching.keyed(claim.scope, claim.key, "reused")
                raise KeyReused(claim.key)
            if record.state != "running":
                return record
            left = give_up_at - time.monotonic()
            if left <= 0:
                watching.keyed(claim.scope, claim.key, "in progress")
                raise InProgress(claim.key, left=record.left)
            await self.store.pause(min(pause * (0.5 + random.random() / 2), left))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _try_claim(self, claim: Claim) -> Record:
        for tries_left in reversed(range(CLAIM_TRIES)):
            try:
                return await self.store.claim(claim)
            except OutcomeUnknown:  # the same run asks again, and is recognised
                if not tries_left:
                    raise
                await self.store.pause(FIRST_PAUSE)
        raise AssertionError

    @staticmethod
    def _given_before(claim: Claim, record: Record) -> Any:
        watching.keyed(claim.scope, claim.key, "replayed")
        if record.state == "done":
            return unpacked(record.result)
        failure = unpacked(record.result)
        kind = FailedBefore if record.state == "failed" else Quarantined
        raise kind(claim.key, error=failure["error"], text=failure["text"])

    async def _finished(self, run: _Claimed, result: object) -> Any:
        """Store the result; what is returned is what every later caller gets, too.

        The operation was carried out. When its result cannot be kept, that is what later callers are told; when the
        store does not answer, the run is as good as crashed.
        """
        try:
            change = run._completed(result)
        except Misuse as error:
            await self.store.change(run._claim, run.token, Change("failed", result=_failure(error)))
            raise
        if not run._over:
            await run._change(change)
        watching.keyed(self.scope, run.key, "ran")
        return unpacked(change.result)

    async def _failed(self, run: _Claimed, error: Exception) -> None:
        watching.keyed(self.scope, run.key, "failed")
        if run._over and not run._may_be_undone():
            return
        policy = next((self._policies[kind] for kind in type(error).__mro__ if kind in self._policies), "release")
        states: dict[str, Change] = {
            "release": Change("released"),
            "replay": Change("failed", result=_failure(error)),
            "quarantine": Change("quarantined", result=_failure(error)),
        }
        # Whether this run still has the key is of no interest to the caller: the operation's own error is. A result
        # that was committed stays.
        await self.store.change(run._claim, run.token, states[policy])


def _failure(error: Exception) -> str:
    return packed({"error": type(error).__name__, "text": str(error)[:MOST_TEXT]}, 8 * 1024)


class Idempotency(_Keys[Store]):
    """Keys for blocking code. Threads may share it."""

    def once(self, key: str, operation: Callable[[Run], Any], *, payload: object = None, wait: float = 0.0) -> Any:
        """Carry out the operation unless it was, and return its result either way.

        While another run is under way, wait for its result for so many seconds, or raise `InProgress`. The same key
        with another payload raises `KeyReused`.
        """
        claim = self._claim_for(key, payload)
        record = run_blocking(self._claimed(claim, wait))
        if record.run != claim.run:
            return self._given_before(claim, record)
        run = Run(self, claim, record)
        try:
            result = operation(run)
        except Exception as error:
            run_blocking(self._failed(run, error))
            raise
        return run_blocking(self._finished(run, result))

    def idempotent(
        self, *, key: Callable[P, str], payload: Callable[P, object] | None = None, wait: float = 0.0
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Make a function idempotent: `key` names each call by its arguments, which are also its payload."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                raise Misuse("an async function needs AsyncIdempotency")

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                given = payload(*args, **kwargs) if payload else _arguments(function, args, kwargs)
                result: R = self.once(
                    key(*args, **kwargs), lambda _run: function(*args, **kwargs), payload=given, wait=wait
                )
                return result

            return call

        return decorate

    def forget(self, key: str, *, because: str) -> bool:
        """Let an operation run again that has ended, as an operator; False when none of this key has."""
        claim = self._to_forget(key, because)
        return run_blocking(self.store.forget(claim))

    def sweep(self, most: int = 1000) -> int:
        """Forget keys that were kept for long enough, at most so many; how many were forgotten."""
        return run_blocking(self.store.sweep(_checked_most(most)))


class AsyncIdempotency(_Keys[Store]):
    """Keys for async code; see `Idempotency`."""

    async def once(
        self, key: str, operation: Callable[[AsyncRun], Awaitable[Any]], *, payload: object = None, wait: float = 0.0
    ) -> Any:
        """Carry out the operation unless it was, and return its result either way; see `Idempotency.once`."""
        run, given = await self._begun(key, payload, wait)
        if run is None:
            return given
        try:
            result = await operation(run)
        except Exception as error:
            await self._failed(run, error)
            raise
        return await self._finished(run, result)

    async def _begun(self, key: str, payload: object, wait: float) -> tuple[AsyncRun | None, Any]:
        """A run that is to be carried out now, or none and what an earlier one gave."""
        claim = self._claim_for(key, payload)
        record = await self._claimed(claim, wait)
        if record.run != claim.run:
            return None, self._given_before(claim, record)
        return AsyncRun(self, claim, record), None

    def idempotent(
        self, *, key: Callable[P, str], payload: Callable[P, object] | None = None, wait: float = 0.0
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Make an async function idempotent; see `Idempotency.idempotent`."""

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                given = payload(*args, **kwargs) if payload else _arguments(function, args, kwargs)
                result: R = await self.once(
                    key(*args, **kwargs), lambda _run: function(*args, **kwargs), payload=given, wait=wait
                )
                return result

            return call

        return decorate

    async def forget(self, key: str, *, because: str) -> bool:
        """Let the operation of a key run again, as an operator; see `Idempotency.forget`."""
        return await self.store.forget(self._to_forget(key, because))

    async def sweep(self, most: int = 1000) -> int:
        """Forget keys that were kept for long enough, at most so many; how many were forgotten."""
        return await self.store.sweep(_checked_most(most))


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The call as JSON, the same however its arguments were passed."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        json.dumps(bound.arguments, allow_nan=False)
    except (TypeError, ValueError):
        raise Misuse(
            f"the arguments of {function.__name__} are not JSON; say with payload=… what of them is to be compared"
        ) from None
    return dict(bound.arguments)


def _checked_policies(on_error: object) -> Policies:
    allowed = ("release", "replay", "quarantine")
    if isinstance(on_error, str) and on_error in allowed:
        return {Exception: on_error}  # type: ignore[dict-item]
    if isinstance(on_error, Mapping) and all(
        isinstance(kind, type) and issubclass(kind, Exception) and policy in allowed
        for kind, policy in on_error.items()
    ):
        return dict(on_error)
    raise Misuse(
        f"on_error is 'release', 'replay' or 'quarantine', or says for each class of error which: {quoted(on_error)}"
    )


def _checked_most(most: object) -> int:
    if type(most) is not int or not 1 <= most <= 1_000_000:
        raise Misuse(f"most is an int from 1 to 1000000, not {quoted(most)}")
    return most
