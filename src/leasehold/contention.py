"""Notices when callers spend much of their time waiting for one lock, and says what would do better.

Only waits are counted, so a lock that is free costs nothing here. The measure is what people feel: how many callers of
this process stood in the queue for a name, on average.
"""

from __future__ import annotations

from typing import Final

from leasehold.errors import quoted, seconds_text

WINDOW: Final = 60.0
"""Seconds over which waits are added up."""
SHORTEST_LOOK: Final = 5.0
"""Nothing is said on less than so many seconds."""
FEWEST_WAITS: Final = 20
CROWDED: Final = 0.5
"""Callers that wait for a name at any time, on average, from which on it is said."""
AGAIN_AFTER: Final = 600.0
"""The same name is not complained of sooner than this."""
SHORT_WAIT: Final = 0.1
MOST_NAMES: Final = 1000


class Crowd:
    """What was waited for one name within the current window."""

    __slots__ = ("quiet_until", "seconds", "since", "waits")

    def __init__(self, since: float) -> None:
        """Nobody has waited yet."""
        self.since, self.waits, self.seconds, self.quiet_until = since, 0, 0.0, 0.0


class Crowds:
    """The names that callers of one client have waited for lately."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        """Nobody has waited yet."""
        self._by_name: dict[str, Crowd] = {}

    def waited(self, name: str, seconds: float, now: float) -> Crowd | None:
        """Count a wait that has ended; returns the crowd when it is time to say something."""
        crowd = self._by_name.get(name)
        if crowd is None:
            if len(self._by_name) >= MOST_NAMES:
                self._by_name.clear()
            crowd = self._by_name[name] = Crowd(now - seconds)
        elif now - crowd.since > WINDOW:
            crowd.since, crowd.waits, crowd.seconds = now - min(seconds, WINDOW), 0, 0.0
        crowd.waits += 1
        crowd.seconds += seconds
        took = now - crowd.since
        if crowd.waits < FEWEST_WAITS or took < SHORTEST_LOOK or now < crowd.quiet_until:
            return None
        if crowd.seconds < CROWDED * took:
            return None
        crowd.quiet_until = now + AGAIN_AFTER
        return crowd


def advice(name: str, waits: int, waited: float, within: float) -> str:
    """What was seen, and the pattern that does better."""
    seen = (
        f"lock {quoted(name)} is crowded: {waited / within:.1f} callers of this process stood in its queue at any "
        f"time ({waits} waits, {seconds_text(waited)} in all, within {seconds_text(within)})"
    )
    if waited / waits < SHORT_WAIT:
        return (
            f"{seen}; its holders are quick, so optimistic concurrency (leasehold.patterns.optimistic) or one "
            "conditional statement does better than a lock"
        )
    return (
        f"{seen}; take one lock for each entity rather than one for all ('account/42', not 'accounts'), let readers "
        "take it shared, or let one writer for each key do the work (`leasehold advise` asks what fits)"
    )
