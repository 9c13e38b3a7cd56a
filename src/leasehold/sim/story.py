"""The events of a history as sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from leasehold.core.held import RELEASED
from leasehold.sim.history import (
    Began,
    Broke,
    Calm,
    Deafened,
    Done,
    Ended,
    Event,
    Fault,
    Freed,
    Got,
    Granted,
    Left,
    Moved,
    NotGot,
    Noticed,
    Queued,
    Refused,
    Told,
    Touched,
    Unqueued,
)
from leasehold.sim.judges import Violation
from leasehold.sim.lanes import Lanes
from leasehold.sim.plan import BEYOND, ELSEWHERE, WITHIN
from leasehold.sim.record import Record

STYLES: dict[type[object], str] = {
    Got: "bold",
    Told: "bold yellow",
    Fault: "yellow",
    Broke: "bold red",
    Left: "bold red",
    Refused: "dim",
    Queued: "dim",
    Unqueued: "dim",
    Moved: "dim",
    Done: "dim",
}


class Story:
    """Tells a history, with its violations where they happened."""

    def __init__(self, record: Record, lanes: Lanes, violations: list[Violation]) -> None:
        self._record, self._lanes, self._violations = record, lanes, violations
        self._about = {holder for violation in violations[:1] for holder in violation.holders}
        # Tokens are long; how many-th of its name it is says more.
        self._ranks: dict[tuple[str, int], int] = {}
        counts: dict[str, int] = {}
        for event in record.of(Granted):
            if (event.name, event.token) not in self._ranks:
                counts[event.name] = counts.get(event.name, 0) + 1
                self._ranks[event.name, event.token] = counts[event.name]

    def tell(self, since: float, until: float) -> Iterator[Text]:
        """Line by line, in the order of time."""
        pending = list(self._violations)
        for event in self._record.events:
            while pending and pending[0].at < event.at:
                yield from self._condemn(pending.pop(0), since, until)
            if since <= event.at <= until:
                yield self._line(event)
        for violation in pending:
            yield from self._condemn(violation, since, until)

    def _condemn(self, violation: Violation, since: float, until: float) -> Iterator[Text]:
        if since <= violation.at <= until:
            line = Text(f"{violation.at:9.4f} ", style="bold red")
            line.append_text(self._lanes.gutter(violation.at))
            line.append(f" {'✗':>8} {violation.judge}: {violation.text}", style="bold red")
            yield line

    def _line(self, event: Event) -> Text:
        who, sentence = self._say(event)
        line = Text(f"{event.at:9.4f} ", style="dim")
        line.append_text(self._lanes.gutter(event.at))
        holder = getattr(event, "holder", "")
        style = STYLES.get(type(event), "default")
        line.append(f" {who:>8} ", style="bold")
        line.append(sentence, style=f"{style} underline" if holder in self._about else style)
        return line

    def _token(self, name: str, token: int) -> str:
        rank = self._ranks.get((name, token))
        return f"token #{rank}" if rank is not None else f"token {token}"

    def _say(self, event: Event) -> tuple[str, str]:
        match event:
            case Granted() | Refused() | Freed() | Queued() | Unqueued() | Left():
                return "server", self._say_server(event)
            case Fault():
                return f"↯{event.who}", self._say_fault(event)
            case Calm():
                return "", "── no faults from here on ──"
            case Touched():
                return event.who, self._say_touched(event)
            case Broke():
                return event.who, f"broke: {event.error}"
            case _:
                return event.who, self._say_worker(event)

    def _say_server(self, event: Granted | Refused | Freed | Queued | Unqueued | Left) -> str:
        name, holder = event.name, event.holder
        match event:
            case Granted():
                return f"grants {name} to {holder}: {self._token(name, event.token)} ({event.mode})"
            case Refused():
                return f"{name} is busy for {holder}"
            case Freed():
                closed = f", closed until {event.closed_until:.3f}" if event.closed_until else ""
                return f"{name} is free of {holder} ({event.how}{closed})"
            case Queued():
                return f"{holder} queues for {name}"
            case Unqueued():
                return f"{holder} is out of the queue for {name}"
            case Left():
                return f"in the end a {event.what} of {holder} is left on {name}"

    def _say_fault(self, event: Fault) -> str:
        until = f", until {event.until:.3f}" if event.until > event.at else ""
        detail = f" ({event.detail})" if event.detail else ""
        return f"{(WITHIN | ELSEWHERE | BEYOND).get(event.kind, event.kind)}{detail}{until}"

    def _say_touched(self, event: Touched) -> str:
        name = event.resource.split("/")[0]
        fence = {"none": "no fence", "writes": "writes fenced", "both": "reads and writes fenced"}[event.fence]
        token = self._token(name, event.token)
        what = f"write {event.write}, based on {event.based_on}" if event.write else f"reads write {event.based_on}"
        where = f"of the resource under {name} ({fence})"
        if event.accepted:
            return f"{what}, {where} with {token}"
        return f"refused: {what}, {where} with {token}, where {self._token(name, event.seen)} has been seen"

    def _say_worker(self, event: Began | Got | NotGot | Moved | Ended | Told | Noticed | Deafened | Done) -> str:
        holder = event.holder
        match event:
            case Began():
                wait = f"waits up to {event.wait:.2f} s" if event.wait else "tries once"
                said = f"wants {event.name} ({event.mode}, ttl {event.ttl:.2f} s, {wait}) as {holder}"
            case Got():
                token = self._token(event.name, event.token)
                said = f"has {event.name} as {holder} with {token}, good until {event.valid_until:.3f}"
            case NotGot():
                said = f"does not get it as {holder}: {event.why}"
            case Moved():
                said = f"{holder} is good until {event.valid_until:.3f}"
            case Ended():
                ended = "is being released" if event.reason == RELEASED else f"is over: {event.reason}"
                said = f"{holder} {ended}" if event.reason else f"{holder} is revived"
            case Noticed():
                said = f"can see that the connection of {holder} broke"
            case Deafened():
                said = f"cannot see that the server lost the connection by which {holder} waits"
            case Told():
                said = f"is told that {holder} is lost"
            case _:
                said = f"is through with {holder}: {event.outcome}"
        return said
