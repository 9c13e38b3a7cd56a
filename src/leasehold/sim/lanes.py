"""What each worker was doing when: the lanes of a time line."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from rich.text import Text

from leasehold.sim.history import Fault
from leasehold.sim.record import Belief, Record


class Span(NamedTuple):
    """Something that lasts."""

    since: float
    until: float
    what: str
    """``wait``, ``hold``, ``pause`` or ``dead``."""
    name: str


class Lanes:
    """One lane for each worker."""

    def __init__(self, record: Record, colours: dict[str, str]) -> None:
        """`colours` are those of the names."""
        self.colours = colours
        self.names = sorted({attempt.began.who for attempt in record.attempts})
        self._spans: dict[str, list[Span]] = {lane: [] for lane in self.names}
        for attempt in record.attempts:
            began = attempt.began
            self._add(began.who, Span(began.at, min(attempt.answered, record.ended_at), "wait", began.name))
        for belief in record.beliefs:
            self._add(belief.who, Span(belief.since, _seen_until(belief), "hold", belief.name))
        faults = record.of(Fault)
        self._fault_times = [fault.at for fault in faults]
        for fault in faults:
            for lane in self.names:
                if lane[0] == fault.who and fault.kind in ("pause", "freeze"):
                    self._add(lane, Span(fault.at, fault.until, "pause", ""))
                elif lane[0] == fault.who and fault.kind == "crash":
                    self._add(lane, Span(fault.at, self._back_at(lane, fault.at, record), "dead", ""))

    def _add(self, lane: str, span: Span) -> None:
        if span.until > span.since:
            self._spans[lane].append(span)

    def _back_at(self, lane: str, crash: float, record: Record) -> float:
        later = [a.began.at for a in record.attempts if a.began.who == lane and a.began.at > crash]
        return min(later, default=record.ended_at)

    def fault_within(self, since: float, until: float) -> bool:
        """Whether a fault began then."""
        index = bisect_right(self._fault_times, since)
        return index < len(self._fault_times) and self._fault_times[index] <= until

    def cell(self, lane: str, since: float, until: float) -> Text:
        """What the worker did in that slice of time, as one character."""
        spans = [span for span in self._spans[lane] if span.since < until and span.until > since]
        what = {span.what: span.name for span in spans}
        if "dead" in what and len(what) == 1:
            return Text("✝", style="red")
        colour = self.colours.get(what.get("hold", ""), "default")
        if "pause" in what:
            return Text("▒", style=f"{colour} bold" if "hold" in what else "yellow")
        if "hold" in what:
            return Text("█", style=colour)
        if "wait" in what:
            return Text("░", style=self.colours.get(what["wait"], "default"))
        return Text("·", style="dim")

    def gutter(self, at: float) -> Text:
        """What every worker was doing at that time, one character each."""
        text = Text()
        for lane in self.names:
            text.append_text(self.cell(lane, at - 1e-9, at + 1e-9))
        return text


def _seen_until(belief: Belief) -> float:
    """A lease that is released at once is still worth a column."""
    return max(belief.until, belief.since + 1e-6)
