"""Optimistic concurrency: read with a version, write on the condition that it is still that one, else do it again.

It does not promise progress: where many write to the same row, most attempts are in vain. The error at the end says so,
with the rate that was measured, and names what does better there.

>>> import sqlite3
>>> store = Versions(sqlite3.connect(":memory:"))
>>> store.create()
>>> @retry_on_conflict
... def add(amount):
...     account = store.read("account/42")
...     store.write("account/42", (account.value or 0) + amount, account.version)
>>> add(10)
>>> store.read("account/42")
Versioned(value=10, version=1)
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar, overload

from leasehold import watching
from leasehold.contention import AGAIN_AFTER, WINDOW
from leasehold.errors import Misuse, TooManyConflicts, VersionConflict, quoted
from leasehold.names import check_wait
from leasehold.patterns.fresh import Transactions
from leasehold.patterns.versions import AsyncVersions, Versioned, Versions

__all__ = [
    "AsyncVersions",
    "Conflicts",
    "Retry",
    "Versioned",
    "Versions",
    "is_conflict",
    "must_hold",
    "retry_on_conflict",
]

P = ParamSpec("P")
R = TypeVar("R")

MOST_ATTEMPTS: Final = 10
WITHIN: Final = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.5
CROWDED: Final = 0.3
"""Above this share of attempts that were in vain, another pattern does better."""
FEWEST_ATTEMPTS: Final = 50
"""Nothing is said of a rate on fewer attempts than these."""

_SQLSTATES: Final = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available
_MYSQL: Final = frozenset({1020, 1205, 1213, 3572})  # record changed, lock wait, deadlock, NOWAIT
_SQLITE: Final = frozenset({5, 6})  # busy, locked; also in their extended forms
_BY_NAME: Final = frozenset({("sqlalchemy", "StaleDataError"), ("redis", "WatchError"), ("valkey", "WatchError")})
_PRECONDITION_FAILED: Final = 412
_AWS: Final = frozenset(
    {
        "412",
        "PreconditionFailed",
        "ConditionalRequestConflict",
        "ConditionalCheckFailedException",
        "TransactionConflictException",
    }
)


def is_conflict(error: BaseException) -> bool:
    """Whether an error says that somebody else wrote first, or was about to, in the words of any library we know.

    Known are our own, SQLAlchemy, Django, PostgreSQL (psycopg, psycopg2, asyncpg), MySQL, SQLite, WATCH of Redis, a
    transaction of etcd that was aborted, the HTTP status 412, and failed conditions of S3 and DynamoDB.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, VersionConflict) or _is_conflict_of_its_library(seen):
            return True
        seen = getattr(seen, "orig", None) or seen.__cause__
    return False


def _is_conflict_of_its_library(error: BaseException) -> bool:
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(error).__mro__}
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    library = type(error).__module__.partition(".")[0]
    number = error.args[0] if error.args else None
    if names & _BY_NAME or state in _SQLSTATES:
        return True
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    if library in ("pymysql", "MySQLdb", "mysql", "asyncmy"):
        return number in _MYSQL
    if library == "grpc" and callable(code := getattr(error, "code", None)):
        return str(getattr(code(), "name", "")) == "ABORTED"
    return _is_failed_precondition(error, library)


def _is_failed_precondition(error: BaseException, library: str) -> bool:
    """Of HTTP, in the words of httpx and requests, of aiohttp, of urllib, and of Amazon's services by boto."""
    response = getattr(error, "response", None)
    if library == "botocore" and isinstance(response, dict):
        return response.get("Error", {}).get("Code") in _AWS
    status = getattr(response, "status_code", None)
    if library == "aiohttp":
        status = getattr(error, "status", None)
    elif library == "urllib":
        status = getattr(error, "code", None)
    return status == _PRECONDITION_FAILED


A = TypeVar("A")


def must_hold(answer: A) -> A:
    """Raise `VersionConflict` unless the conditions of an etcd transaction held: no client makes an error of that.

    Takes what the client has answered: an object or a mapping with ``succeeded``, a tuple that begins with it, or that
    alone.

    >>> must_hold({"header": {}, "succeeded": True})["succeeded"]
    True
    """
    seen: Any = answer[0] if isinstance(answer, tuple) and answer else answer
    if isinstance(seen, Mapping):
        seen = seen.get("succeeded", False)  # the JSON gateway leaves out what is false
    elif not isinstance(seen, bool):
        seen = getattr(seen, "succeeded", None)
    if not isinstance(seen, bool):
        raise Misuse(
            f"the answer to an etcd transaction says whether it succeeded, and this does not: {quoted(answer)}"
        )
    if not seen:
        raise VersionConflict("the conditions of the transaction did not hold: somebody else wrote first; read again")
    return answer


class Conflicts:
    """How often attempts of one function were in vain."""

    __slots__ = ("_attempts_before", "_in_vain_before", "_quiet_until", "_since", "attempts", "function", "in_vain")

    def __init__(self, function: str = "") -> None:
        self.function = function
        self.attempts = 0
        self.in_vain = 0
        self._attempts_before = self._in_vain_before = 0
        self._since = self._quiet_until = 0.0

    @property
    def rate(self) -> float:
        """The share of attempts that met a conflict, from 0 to 1."""
        return self.in_vain / self.attempts if self.attempts else 0.0

    def __repr__(self) -> str:
        return f"<Conflicts {self.in_vain} of {self.attempts}>"

    def meet(self) -> None:
        """Count an attempt that was in vain; when many were lately, say what does better."""
        self.in_vain += 1
        now = time.monotonic()
        if now - self._since > WINDOW:
            self._since, self._attempts_before, self._in_vain_before = now, self.attempts - 1, self.in_vain - 1
        attempts, in_vain = self.attempts - self._attempts_before, self.in_vain - self._in_vain_before
        if attempts >= FEWEST_ATTEMPTS and in_vain / attempts > CROWDED and now >= self._quiet_until:
            self._quiet_until = now + AGAIN_AFTER
            watching.conflicting(self.function, attempts, in_vain, self._other_pattern(in_vain / attempts))

    def advice(self) -> str:
        """What to do about it."""
        return "try again later" if self.rate <= CROWDED else self._other_pattern(self.rate)

    @staticmethod
    def _other_pattern(rate: float) -> str:
        return (
            f"{rate:.0%} of all attempts here are in vain, so this is the wrong pattern for it: let one writer do "
            "it after the other (a lock, or one writer for each key), or make it one statement "
            "(SET balance = balance + 10)"
        )


class Retry:
    """How often, how long and with which pauses an operation is tried again."""

    def __init__(
        self,
        *,
        attempts: int = MOST_ATTEMPTS,
        within: float = WITHIN,
        is_conflict: Callable[[BaseException], bool] = is_conflict,
    ) -> None:
        """Try at most `attempts` times and begin none later than `within` seconds after the first."""
        if type(attempts) is not int or not 1 <= attempts <= 10_000:
            raise Misuse(f"attempts is an int from 1 to 10000, not {quoted(attempts)}")
        self._attempts, self._within, self._is_conflict = attempts, check_wait(within, what="within"), is_conflict

    def pauses(self, conflicts: Conflicts) -> Iterator[Callable[[Exception], float]]:
        """For each attempt a function that says how long to pause after an error of it, or raises."""
        began, longest = time.monotonic(), FIRST_PAUSE
        for number in range(1, self._attempts + 1):
            conflicts.attempts += 1

            def pause_after(error: Exception, number: int = number, longest: float = longest) -> float:
                if isinstance(error, Misuse) or not self._is_conflict(error):
                    raise error
                conflicts.meet()
                pause = random.random() * longest  # full jitter: those who met must not meet again
                seconds = time.monotonic() - began
                if number == self._attempts or seconds + pause > self._within:
                    if watching.watchers:
                        watching.tried(conflicts.function, number, gave_up=True)
                    raise TooManyConflicts(attempts=number, seconds=seconds, advice=conflicts.advice()) from error
                return pause

            yield pause_after
            longest = min(longest * 2, LONGEST_PAUSE)


class _Call:
    """One call of a function with `retry_on_conflict`. Tasks inherit it, and some of them outlive it."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


_inside: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("leasehold_retry", default=None)


@contextmanager
def _not_nested() -> Iterator[None]:
    """An inner retry would repeat a part of a transaction whose reads are old already."""
    outer = _inside.get()
    if outer is not None and not outer.is_over:
        raise Misuse(
            "a function with retry_on_conflict was called inside of another; let the outermost one retry (a task that "
            "it began is inside of it until it returns: begin that afterwards, or each attempt begins one)"
        )
    call = _Call()
    token = _inside.set(call)
    try:
        yield
    finally:
        call.is_over = True
        _inside.reset(token)


@overload
def retry_on_conflict(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def retry_on_conflict(
    *,
    attempts: int = ...,
    within: float = ...,
    on: object = ...,
    is_conflict: Callable[[BaseException], bool] = ...,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def retry_on_conflict(function: Any = None, /, *, on: object = None, **settings: Any) -> Any:
    """Call a function again when it met a conflict, with full jitter, a bound and a time budget.

    The function begins its transaction, reads, writes and commits: each attempt sees the state of that moment. It is
    refused when a transaction is open already on a connection among its arguments, and what an attempt in vain has left
    open there is rolled back.

    With `on` all of that is done for it: each attempt is a transaction of its own on that connection, committed at the
    end and rolled back on any error. `on` is the connection, a function that gives it, or the name of the parameter
    that takes it.

    Works for async functions, too. How often attempts were in vain is in ``function.conflicts``.
    """
    retry = Retry(**settings)  # refuses what is wrong now, not at the first call
    if function is None:
        return functools.partial(_retrying, retry, on)
    if not callable(function):
        raise Misuse(f"retry_on_conflict takes a function, not {quoted(function)}")
    return _retrying(retry, on, function)


def _retrying(retry: Retry, on: object, function: Callable[..., Any]) -> Callable[..., Any]:
    conflicts = Conflicts(getattr(function, "__qualname__", type(function).__qualname__))
    transactions = Transactions(function, on)

    def done(attempts: int) -> None:
        if watching.watchers:
            watching.tried(conflicts.function, attempts, gave_up=False)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _not_nested():
            for number, pause_after in enumerate(retry.pauses(conflicts), 1):
                try:
                    with transactions.fresh(args, kwargs):
                        result = function(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - raised again unless it is a conflict
                    pause = pause_after(error)
                else:
                    done(number)
                    return result
                time.sleep(pause)
        raise AssertionError

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with _not_nested():
            for number, pause_after in enumerate(retry.pauses(conflicts), 1):
                try:
                    async with transactions.fresh_async(args, kwargs):
                        result = await function(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - raised again unless it is a conflict
                    pause = pause_after(error)
                else:
                    done(number)
                    return result
                await asyncio.sleep(pause)
        raise AssertionError

    chosen: Any = call_async if inspect.iscoroutinefunction(function) else call
    chosen.conflicts = conflicts
    return chosen  # type: ignore[no-any-return]
