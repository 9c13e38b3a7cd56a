"""Nobody overwrites what it has not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from leasehold.chaos.checkers.log import accepted_writes, by_place, place_of, short, worker_of
from leasehold.chaos.checkers.record import Record
from leasehold.chaos.checkers.verdict import Verdict, Violation, found
from leasehold.chaos.history import RUN, Event

NAME = "lost updates"
CLAIM = "On the fenced resource no update is lost: each builds on the one before it, and all are there in the end."

CHAINED = ("register", "counter")
"""Whose updates name the value that they build on."""
COLLECTED = ("set", "queue", "bank", "partition")
"""Where everything that was accepted is found in the end."""


def check(record: Record) -> Verdict:
    """Follow the chain of values in the resource's own log: each accepted write names the value that it builds on.

    A write that builds on another value than the last one has overwritten an update that its writer never saw. Where
    things are collected (in a set, a queue, a ledger) all that were accepted have to be there in the end, once. A write
    that its worker knows to be done has to be in the log. Losses on the plain resource are shown beside: it has no
    fence.
    """
    violations: list[Violation] = []
    shown: list[Violation] = []
    judged = {"plain": 0, "fenced": 0}
    accepted = accepted_writes(record.log)
    finals = {place_of(event): event for event in record.events if event.worker == RUN and event.kind == "got"}
    for place, entries in by_place(accepted).items():
        side, kind, final = place[0], entries[0].detail.get("kind"), finals.get(place)
        if side not in judged:
            continue
        losses: list[Violation] = []
        if kind in CHAINED:
            losses = [*_breaks(entries), *_another_in_the_end(entries, final)]
        elif kind in COLLECTED and final is not None:
            losses = [*_not_there_in_the_end(entries, final), *_off(final)]
        else:
            continue
        judged[side] += len(entries)
        (violations if side == "fenced" else shown).extend(losses)
    violations += _missing(record, accepted)
    return found(
        NAME,
        CLAIM,
        judged=judged["fenced"],
        of="fenced updates",
        violations=violations,
        shown=shown,
        figures={"lost (fenced)": len(violations), "lost (plain)": len(shown), "plain updates": judged["plain"]},
        nothing="nothing was read, changed and written back to a fenced resource",
    )


def _breaks(entries: list[Event]) -> list[Violation]:
    breaks = []
    for before, entry in pairwise(entries):
        if _after(entry) != _value(before):
            breaks.append(
                Violation(
                    entry.at,
                    f"{worker_of(entry)} wrote {short(_value(entry))} to the {entry.detail.get('resource')} "
                    f"“{entry.detail.get('key', entry.name)}” after reading {short(_after(entry))}, but "
                    f"{short(_value(before))} of {worker_of(before)} was there: that update is lost.",
                    (before, entry),
                )
            )
    return breaks


def _missing(record: Record, accepted: list[Event]) -> list[Violation]:
    """Writes that their workers know to be done, and the log knows nothing of."""
    if not record.log:
        return []
    logged = {(worker_of(entry), entry.detail.get("by_op")) for entry in accepted}
    return [
        Violation(
            request.events[-1].at,
            f"{request.begin.worker} was told that its write to the fenced “{place_of(request.begin)[1]}” was done, "
            "and the resource has no trace of it.",
            request.events,
        )
        for request in record.done_writes
        if place_of(request.begin)[0] == "fenced" and (request.begin.worker, request.begin.op) not in logged
    ]


def _another_in_the_end(entries: list[Event], final: Event | None) -> Iterator[Violation]:
    last = entries[-1]
    if final is not None and _value(final) != _value(last):
        side, key = place_of(last)
        yield Violation(
            final.at,
            f"In the end the {side} “{key}” is {short(_value(final))}, but {short(_value(last))} was written last, by "
            f"{worker_of(last)}.",
            (last, final),
        )


def _not_there_in_the_end(entries: list[Event], final: Event) -> Iterator[Violation]:
    side, key = place_of(final)
    times = Counter(short(value) for value in final.detail.get("value") or [])
    for entry in entries:
        found_times = times[short(_value(entry))]
        if found_times != 1:
            how = "is not there in the end" if not found_times else f"is there {found_times} times in the end"
            text = f"{short(_value(entry))}, which the {side} “{key}” accepted from {worker_of(entry)}, {how}."
            yield Violation(entry.at, text, (entry, final))


def _off(final: Event) -> Iterator[Violation]:
    if off := final.detail.get("off_by"):
        side, key = place_of(final)
        yield Violation(final.at, f"In the end the balances of the {side} “{key}” are off by {off}.", (final,))


def _value(entry: Event) -> Any:
    return entry.detail.get("value") or None


def _after(entry: Event) -> Any:
    return entry.detail.get("after") or None
