"""Where the library says what happens in it, to whoever watches.

A watcher is anything that can be called with an event of `leasehold.events`: a list's ``append``, a function, or one of
`leasehold.telemetry`. There is one place for the whole process, because fences, idempotency keys and retries have no
client. While nobody watches, a hot path asks whether `watchers` is empty, and nothing else.

>>> import pathlib, tempfile, leasehold
>>> seen = []
>>> with leasehold.watch(seen.append), leasehold.Leasehold(pathlib.Path(tempfile.mkdtemp()) / "leases.db") as locks:
...     with locks.lock("nightly-export"):
...         pass
>>> [type(event).__name__ for event in seen]
['Granted', 'Released']
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from leasehold.core.held import RELEASED
from leasehold.errors import Misuse, NotAcquired, StaleToken, TokenUsed, quoted

if TYPE_CHECKING:
    from leasehold.contention import Crowd
    from leasehold.core.acquire import Waiting
    from leasehold.core.engine import Facts, Want
    from leasehold.core.held import Held
    from leasehold.errors import LeaseholdError
    from leasehold.events import About, Event, KeyOutcome

Watcher = Callable[["Event"], object]
E = TypeVar("E", bound="LeaseholdError")

watchers: tuple[Watcher, ...] = ()
"""Those who watch now. Ask before making an event: ``if watching.watchers:``."""
_changing = threading.Lock()
_complained_of: set[int] = set()


class Watch:
    """A watcher at work; it stops at the end of a ``with`` block, or when told to."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def stop(self) -> None:
        """Let it see nothing more. To stop it twice is no mistake."""
        global watchers
        with _changing:
            watchers = tuple(one for one in watchers if one is not self._watcher)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def watch(watcher: Watcher) -> Watch:
    """Have `watcher` called with every event of this process from now on.

    It is called where the event happens, by any thread: it has to be quick. What it raises is logged, once.
    """
    global watchers
    if not callable(watcher):
        raise Misuse(f"a watcher is a function that takes an event, not {quoted(watcher)}")
    with _changing:
        watchers = (*(one for one in watchers if one is not watcher), watcher)
    return Watch(watcher)


def note(event: Event) -> None:
    """Show an event to all who watch. One that fails harms neither the library nor the others."""
    for watcher in watchers:
        try:
            watcher(event)
        except Exception:  # noqa: BLE001 -- it is foreign code; it is logged, and the lease must go on
            if id(watcher) not in _complained_of:
                _complained_of.add(id(watcher))
                from leasehold.keeping import log

                log().exception("a watcher failed; this is said once, however often it fails")


# What the parts of the library call, behind a look at `watchers`.


def granted(facts: Facts, held: Held, waiting: Waiting | None) -> None:
    """A lease was granted."""
    from leasehold.events import Granted

    began = held.acquired_at if waiting is None else waiting.began
    contended = waiting is not None and waiting.contended
    note(Granted(_about(facts, held.want), held.token, max(held.world.now() - began, 0.0), contended, held.ttl))


def not_granted(facts: Facts, want: Want, waited: float, contended: bool, error: LeaseholdError) -> None:
    """An attempt ended without a lease."""
    from leasehold.events import Failed, GaveUp

    if isinstance(error, NotAcquired):
        note(GaveUp(_about(facts, want), waited, contended, error.holder))
    else:
        note(Failed(_about(facts, want), "acquire", type(error).__name__, waited))


def ended(facts: Facts, held: Held) -> None:
    """A lease is over: given back, or lost."""
    from leasehold.events import Lost, Released

    about, seconds = _about(facts, held.want), max(held.world.now() - held.acquired_at, 0.0)
    if held.ended is None or held.ended is RELEASED:
        note(Released(about, held.token, seconds))
    else:
        note(Lost(about, held.token, seconds, held.ended))


def renewed(facts: Facts, held: Held) -> None:
    """A lease was renewed."""
    from leasehold.events import Renewed

    note(Renewed(_about(facts, held.want), held.token, held.remaining))


def not_renewed(facts: Facts, held: Held, error: LeaseholdError | None) -> None:
    """A renewal was tried and not confirmed; it will be tried again."""
    from leasehold.events import Failed

    why = "OutcomeUnknown" if error is None else type(error).__name__
    note(Failed(_about(facts, held.want), "renew", why, 0.0))


def broken(facts: Facts, name: str, token: int, who: str, because: str) -> None:
    """An operator released a name by force. This is said even when nobody watches."""
    from leasehold.events import About, Broken

    event = Broken(About(facts.engine, facts.address, name, "exclusive"), token, who, because)
    _say(event, f"force release of {name!a} by {who} because {because!a}; its next token is above {token}")
    note(event)


def crowded(facts: Facts, want: Want, crowd: Crowd, now: float) -> None:
    """Callers spend much of their time waiting for one lock. This is said even when nobody watches."""
    from leasehold.contention import advice
    from leasehold.events import Crowded

    within = now - crowd.since
    told = advice(want.name, crowd.waits, crowd.seconds, within)
    event = Crowded(_about(facts, want), crowd.waits, crowd.seconds, within, told)
    _say(event, told)
    note(event)


def refused(error: E) -> E:
    """A fence refuses a write; returns the error to be raised."""
    if watchers:
        from leasehold.events import Refused

        reason: Literal["stale", "used", "jump"]
        reason = "stale" if isinstance(error, StaleToken) else "used" if isinstance(error, TokenUsed) else "jump"
        resource, seen = str(getattr(error, "resource", "")), getattr(error, "seen", None)
        note(Refused(resource, error.token or 0, reason, seen))
    return error


def tried(function: str, attempts: int, *, gave_up: bool) -> None:
    """A call that is tried again on conflicts has ended."""
    from leasehold.events import Tried

    note(Tried(function, attempts, attempts if gave_up else attempts - 1, gave_up))


def keyed(scope: str, key: str, outcome: KeyOutcome) -> None:
    """Something came of an operation with an idempotency key."""
    if watchers:
        from leasehold.events import Keyed

        note(Keyed(scope, key, outcome))


def missed(scope: str, told: str, *, first: str, last: str, count: int, why: str) -> None:
    """Ticks of a job were missed. This is said even when nobody watches."""
    from leasehold.events import Missed

    event = Missed(scope, first, last, count, why)
    _say(event, told)
    note(event)


def elected(name: str, token: int) -> None:
    """An instance has become the leader."""
    if watchers:
        from leasehold.events import Elected

        note(Elected(name, token))


def resigned(name: str, token: int, why: str) -> None:
    """A leader was told to stop its work, or has ended it."""
    if watchers:
        from leasehold.events import Resigned

        note(Resigned(name, token, why))


def conflicting(function: str, attempts: int, conflicts: int, advice: str) -> None:
    """Many attempts of a function are in vain. This is said even when nobody watches."""
    from leasehold.events import Conflicting

    event = Conflicting(function, attempts, conflicts, advice)
    _say(event, f"{quoted(function)}: {advice}")
    note(event)


def _say(event: Event, text: str) -> None:
    """Log what people have to know, with the event's fields for formatters that want them."""
    from leasehold.events import fields
    from leasehold.keeping import log

    log().warning("%s", text, extra={"leasehold": fields(event)})


def _about(facts: Facts, want: Want) -> About:
    from leasehold.events import About

    return About(facts.engine, facts.address, want.name, want.mode)
