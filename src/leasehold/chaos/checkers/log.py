"""Reading the resource's own log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from leasehold.chaos.history import Event

Place = tuple[str, str]
"""A side of the resource, "plain" or "fenced", and the key."""


def worker_of(entry: Event) -> str:
    """Who asked for what an entry of the log decided."""
    return str(entry.detail.get("by", "?"))


def place_of(event: Event) -> Place:
    """Which side it is about, and which key there."""
    return str(event.detail.get("resource")), str(event.detail.get("key", event.name))


def by_place(entries: Iterable[Event]) -> dict[Place, list[Event]]:
    """Entries of the log by their place, in order."""
    found: dict[Place, list[Event]] = defaultdict(list)
    for entry in entries:
        found[place_of(entry)].append(entry)
    return found


def accepted_writes(log: Iterable[Event], kind: str | None = None) -> list[Event]:
    """The writes that took effect, of one kind of resource if it is given."""
    return [
        entry
        for entry in log
        if entry.kind == "accepted" and not entry.detail.get("reads") and kind in (None, entry.detail.get("kind"))
    ]


def short(value: Any) -> str:
    """A value for a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
