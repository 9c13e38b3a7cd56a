"""Every error that Leasehold raises, on one screen.

Errors are facts: each carries the name, the holder and the token where they are known, and its message says what to
do next. Values that came from outside are quoted and cut, so that a message is always one line and never a flood.

>>> try:
...     raise NotAcquired("nightly-export", wait=5.0, holder="worker@host-1:411")
... except TimeoutError as error:
...     print(error)
lock 'nightly-export' was not free within 5 s; held by worker@host-1:411
"""

from __future__ import annotations

_MOST_CHARACTERS_QUOTED = 64


def quoted(value: object) -> str:
    """Show a foreign value in a message: escaped, on one line, and never more than 64 characters of it."""
    text = value if isinstance(value, str) else _shown_safely(value)
    cut = text[:_MOST_CHARACTERS_QUOTED]
    shown = ascii(cut) if isinstance(value, str) else cut.encode("unicode_escape").decode()
    return shown + ("…" if len(text) > len(cut) else "")


def _shown_safely(value: object) -> str:
    """A repr that cannot fail: that of a foreign object may, and that of an int of thousands of digits does."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 -- it is foreign code, and this is only a message
        return f"a value of type {type(value).__name__}"


def seconds_text(seconds: float) -> str:
    """Show a duration the way a person would write it."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


class LeaseholdError(Exception):
    """The root of all errors of this library."""

    name: str | None = None
    """The lock's name, where it is known."""
    holder: str | None = None
    """Who holds it, as a label for people, where it is known."""
    token: int | None = None
    """The fencing token, where it is known."""


class Misuse(LeaseholdError, ValueError):
    """The caller asked for something that cannot be right. Nothing was sent to the engine."""


class InvalidName(Misuse):
    """A name or namespace that would not mean the same thing on every engine."""


class InvalidTTL(Misuse):
    """A TTL (or another duration of a lease) outside of what is allowed."""


class InvalidWait(Misuse):
    """A wait that is not a number of seconds, zero or more."""


class InvalidToken(Misuse):
    """A fencing token that is not an integer from 0 to 2**63 - 1."""


class InvalidURL(Misuse):
    """An engine address that cannot be understood. The message never shows a password."""


class GuaranteeTooWeak(Misuse):
    """A correctness lock was asked for where the engine cannot keep tokens increasing."""


class NotSupported(Misuse):
    """The engine does not have the capability that was asked for."""


class NotAcquired(LeaseholdError, TimeoutError):
    """The lock was not free within the wait. The body did not run."""

    def __init__(self, name: str, *, wait: float, holder: str | None = None, token: int | None = None) -> None:
        """Say which lock, how long was waited, and who holds it where the engine could tell."""
        self.name, self.wait, self.holder, self.token = name, wait, holder, token
        patience = f"was not free within {seconds_text(wait)}" if wait else "is not free"
        by = f"; held by {holder}" if holder else ""
        super().__init__(f"lock {quoted(name)} {patience}{by}")


class TooManyWaiters(LeaseholdError):
    """This process already has as many waiters as it is allowed to have."""


class LeaseLost(LeaseholdError):
    """The lease may no longer be held: stop the work, and write nothing that is not fenced by its token."""

    def __init__(self, name: str, reason: str, *, token: int | None = None, holder: str | None = None) -> None:
        """Say which lease was lost and why."""
        self.name, self.reason, self.token, self.holder = name, reason, token, holder
        numbered = f" (token {token})" if token is not None else ""
        super().__init__(f"the lease on {quoted(name)}{numbered} was lost: {reason}")


class StaleToken(LeaseholdError):
    """The resource has seen a higher token: a later holder is at work, and this write was refused."""

    def __init__(self, resource: str, *, token: int, seen: int) -> None:
        """Carry both numbers and the resource."""
        self.resource, self.token, self.seen = resource, token, seen
        super().__init__(
            f"token {token} is stale for {quoted(resource)}: token {seen} has been seen there; "
            "a later holder is at work, so nothing was written"
        )


class TokenUsed(LeaseholdError):
    """The token has written already, and this write was to be the only one: refused.

    After an attempt whose answer was lost this is good news: that attempt did write.
    """

    def __init__(self, resource: str, *, token: int) -> None:
        """Carry the token and the resource."""
        self.resource, self.token = resource, token
        super().__init__(
            f"token {token} has already written to {quoted(resource)}, and once=True allows one write per token; "
            "if an earlier attempt of yours got no answer, it was carried out"
        )


class TokenJump(LeaseholdError):
    """The token is absurdly far above the highest one seen: refused, since it would lock everybody out."""

    def __init__(self, resource: str, *, token: int, seen: int | None, most: int) -> None:
        """Carry the numbers and the resource; `seen` is None where no token has been seen yet."""
        self.resource, self.token, self.seen, self.most = resource, token, seen, most
        super().__init__(
            f"token {token} is more than {most} above both the highest seen for {quoted(resource)} "
            f"({'none yet' if seen is None else seen}) and the wall clock in microseconds; "
            "confirm it with allow_jump=True if it is right"
        )


class EngineError(LeaseholdError):
    """The engine answered with something that is neither a grant nor a refusal; its own words are in the message."""


class EngineUnavailable(EngineError):
    """The engine cannot be reached: the request was not carried out."""


class OutcomeUnknown(EngineError):
    """The request was sent and no answer came: it may or may not have been carried out."""


class VersionConflict(LeaseholdError):
    """Somebody else wrote since this version was read, so nothing was written."""


class TooManyConflicts(VersionConflict):
    """The operation was tried again and again, and each time somebody else wrote first; its cause is the last one."""

    def __init__(self, *, attempts: int, seconds: float, advice: str) -> None:
        """Carry how often and for how long it was tried."""
        self.attempts, self.seconds = attempts, seconds
        super().__init__(f"{attempts} attempts in {seconds_text(seconds)} all met a conflict; {advice}")


class InProgress(LeaseholdError):
    """Another run of the same operation has not finished yet."""

    def __init__(self, key: str, *, left: float) -> None:
        """Carry the key, and when the run that is under way would be taken for crashed."""
        self.key, self.retry_after = key, max(left, 0.0)
        super().__init__(
            f"the operation of key {quoted(key)} is under way elsewhere; ask again for its result, or give a wait "
            f"(it would be taken for crashed in {seconds_text(self.retry_after)})"
        )


class FailedBefore(LeaseholdError):
    """An earlier run of the same operation failed, and its failure is its result."""

    def __init__(self, key: str, *, error: str, text: str) -> None:
        """Carry the key, and the name of the class and the text of that error."""
        self.key, self.error, self.text = key, error, text
        super().__init__(f"the operation of key {quoted(key)} failed before, with {error}: {quoted(text)}")


class Quarantined(LeaseholdError):
    """An earlier run of the same operation ended in doubt; somebody has to look before it may run again."""

    def __init__(self, key: str, *, error: str, text: str) -> None:
        """Carry the key, and the name of the class and the text of that error."""
        self.key, self.error, self.text = key, error, text
        super().__init__(
            f"the operation of key {quoted(key)} is in quarantine after {error}: {quoted(text)}; "
            "see what it has done, then forget() its key to let it run again"
        )


class KeyReused(LeaseholdError):
    """The same idempotency key came with another payload."""

    def __init__(self, key: str) -> None:
        """Carry the key."""
        self.key = key
        super().__init__(
            f"key {quoted(key)} came before with another payload, whose result is not the answer to this one; "
            "use a new key for a new operation"
        )


class Moved(LeaseholdError):
    """This member does not own the entity's partition (any more), and nothing of what was submitted was begun."""

    def __init__(self, group: str, entity: str, partition: int, why: str) -> None:
        """Carry which entity of which group, its partition, and why it is not served here."""
        self.name, self.entity, self.partition = f"{group}/{partition}", entity, partition
        super().__init__(
            f"partition {partition} of {quoted(group)} is not served here: {why}; nothing was begun for "
            f"{quoted(entity)}, so submit it again, to its owner or through an inbox"
        )


class QueueFull(LeaseholdError):
    """As much is queued already as may be."""

    def __init__(self, what: str, most: int) -> None:
        """Carry what is full, and how much fits in."""
        self.most = most
        super().__init__(f"{most} wait already in {what}; slow down, or raise the limit if that many are meant")


class GuaranteeWarning(UserWarning):
    """The deployment gives less than its user may think; the message says what and how to raise it."""
