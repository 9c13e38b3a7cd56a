"""When and how a program is ended whose lease cannot be kept: ``--on-lost term:10,kill``.

The steps are counted back from the deadline. With ``term:10,kill`` the program gets SIGTERM when 10 seconds (and a
little) are left of a lease that could not be renewed, and SIGKILL so early that nothing of it runs at the deadline.
A lease that was revoked leaves nothing to count back from: the steps start at once, and still end by the old deadline.

>>> steps = parse("int:2,term:3,kill")
>>> steps.total
5.0
>>> fitted = steps.fitted(Window(ttl=9, longest_hold=None))
>>> fitted.total < 9 * 0.4
True
>>> countdown = Countdown(fitted, now=100.0, deadline=103.0, reserve=0.45)
>>> countdown.due(100.0), countdown.due(100.1)
([2], [])
>>> countdown.due(102.55)
[15, 9]
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from leasehold.cli.options import seconds_in
from leasehold.errors import quoted

DEFAULT = "term:10,kill"
LONGEST_PAUSE = 3600.0
MOST_STEPS = 8
_SIGNALS = {
    name.lower(): int(getattr(signal, f"SIG{name}"))
    for name in ("INT", "TERM", "HUP", "QUIT", "ABRT", "USR1", "USR2", "KILL")
    if hasattr(signal, f"SIG{name}")
}


@dataclass(frozen=True, slots=True)
class Window:
    """How long a lease lasts, and what of that the steps may use."""

    ttl: float
    longest_hold: float | None

    @property
    def shortest(self) -> float:
        """The least that a program may have to itself."""
        return self.ttl if self.longest_hold is None else min(self.ttl, self.longest_hold)

    @property
    def reserve(self) -> float:
        """How long before the deadline SIGKILL is sent: the system needs a moment to end everything."""
        return min(max(self.shortest / 20, 0.02), 0.5)

    @property
    def room(self) -> float:
        """What the steps may take together.

        A lease is renewed when a third of it has gone by. Steps that took more than the last two fifths would leave
        too little time in between to try a failed renewal again.
        """
        return max(self.shortest * 0.4 - self.reserve, 0.0)


@dataclass(frozen=True, slots=True)
class Steps:
    """Signals, each with the pause that follows it. SIGKILL comes after the last pause and is not among them."""

    pauses: tuple[tuple[int, float], ...]

    @property
    def total(self) -> float:
        """From the first signal to SIGKILL, in seconds."""
        return sum((pause for _, pause in self.pauses), 0.0)

    def fitted(self, window: Window) -> Steps:
        """These steps, shortened in proportion where they do not fit."""
        if self.total <= window.room:
            return self
        factor = window.room / self.total
        return Steps(tuple((signum, pause * factor) for signum, pause in self.pauses))


class Countdown:
    """Steps that have begun. They are not taken back, even if the engine comes back meanwhile."""

    def __init__(self, steps: Steps, *, now: float, deadline: float, reserve: float) -> None:
        """SIGKILL is sent `reserve` seconds before the deadline at the latest."""
        self.kill_at = max(min(now + steps.total, deadline - reserve), now)
        self._left: list[tuple[float, int]] = []
        at = now
        for signum, pause in steps.pauses:
            self._left.append((min(at, self.kill_at), signum))
            at += pause
        self._left.append((self.kill_at, int(signal.SIGKILL)))

    @property
    def next_at(self) -> float | None:
        """When the next signal is due."""
        return self._left[0][0] if self._left else None

    def due(self, now: float) -> list[int]:
        """The signals to send now; each is returned once."""
        signals = [signum for at, signum in self._left if at <= now]
        self._left = self._left[len(signals) :]
        return signals


def parse(text: str) -> Steps:
    """Read ``term:10,kill``; a `ValueError` says what is allowed."""
    words = text.lower().split(",")
    if words[-1].strip().removeprefix("sig") == "kill":
        words.pop()
    if len(words) > MOST_STEPS:
        raise ValueError(f"{len(words)} steps are too many; at most {MOST_STEPS} are allowed")
    return Steps(tuple(_step(word) for word in words))


def _step(word: str) -> tuple[int, float]:
    name, colon, pause = word.partition(":")
    name = name.strip().removeprefix("sig")
    if name not in _SIGNALS:
        raise ValueError(f"{quoted(word)} does not start with a signal; write {' or '.join(_SIGNALS)}, as in {DEFAULT}")
    if name == "kill":
        raise ValueError("kill comes last and takes no time, as in term:10,kill")
    if not colon:
        raise ValueError(f"say how long the program may take after {name}, as in {name}:10,kill")
    seconds = seconds_in(pause)
    if seconds > LONGEST_PAUSE:
        raise ValueError(f"{quoted(word)} takes longer than {LONGEST_PAUSE:g} seconds")
    return _SIGNALS[name], seconds
