"""What a run asks for the lock: Leasehold itself, or a peer library behind the same few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

Mode = Literal["exclusive", "shared", "permit"]


class Held(Protocol):
    """One grant, as its worker sees it."""

    @property
    def token(self) -> int | None:
        """The fencing token; None from libraries that have none."""
        ...

    @property
    def until(self) -> float:
        """The `time.monotonic()` at which the worker stops to believe unless the lease is renewed, or stopped to.

        `inf` from libraries that do not tell.
        """
        ...

    def believes(self) -> bool:
        """Whether the library still says that the lock is held."""
        ...

    def release(self) -> bool:
        """Release; False when the library says that it was not held any more. Errors are raised as they come."""
        ...


class Subject(Protocol):
    """A library, connected to the engine, in one worker process."""

    name: ClassVar[str]
    modes: ClassVar[frozenset[Mode]]

    def take(
        self,
        name: str,
        *,
        ttl: float,
        wait: float,
        told: Callable[[], None],
        mode: Mode = "exclusive",
        permits: int = 1,
    ) -> Held | None:
        """Take the lock, or None when it was busy all the while; `told` is called when the library says it was lost."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class TakesSeveral(Protocol):
    """A subject that can also take several names at once, all or none."""

    def take_several(
        self, names: Sequence[str], *, ttl: float, wait: float, told: Callable[[str], None]
    ) -> list[Held] | None:
        """A grant for each name, in their order, or None when one was busy all the while; `told` gets the name."""
        ...
