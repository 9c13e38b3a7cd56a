"""What a person may know of a name, from what the server keeps for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, cast

from leasehold.core.engine import HolderStatus, Mode, NameStatus, WaiterStatus
from leasehold.core.table import patience_left

_HEAD: Final = re.compile(rb"(\d+)(?:;(\d+),(\d+),(\d+),(none|shared|permit))?(?: (\S+) (.*))?", re.DOTALL)
_SEAT: Final = re.compile(rb"(\d+) (\d+) (\d+) (\d+) (\d+) (.*)", re.DOTALL)
_HASHED_SEAT: Final = re.compile(rb"(\d+) (.*)", re.DOTALL)
_PLACE: Final = re.compile(rb"(exclusive|shared|permit) (\d+) (\d+) (\d+) (\S+) (\d+) (\d+) (.*)", re.DOTALL)


class Unreadable(Exception):
    """What the server keeps was not written by our scripts."""


def _read(pattern: re.Pattern[bytes], text: Any) -> tuple[bytes, ...]:
    match = pattern.fullmatch(text) if isinstance(text, bytes) else None
    if match is None:
        raise Unreadable
    return tuple(match.groups())


def is_idle(head: bytes) -> bool:
    """Whether a head says by itself that nobody holds the name and nobody waits."""
    match = _HEAD.fullmatch(head)
    return match is not None and match[4] in {None, b"0"} and match[5] in {None, b"none"} and match[6] is None


class _Seat:
    """One lease as it is written on the server."""

    def __init__(self, token: bytes, mode: Mode, text: Any) -> None:
        renewed, since, _beat, lasts, delay, about = _read(_SEAT, text)
        self.token, self.mode, self.about = int(token), mode, about.decode("utf-8", "replace")
        self.since, self.expires, self.delay = int(since), int(renewed) + int(lasts), int(delay)


def status_from(name: str, reply: Any) -> NameStatus | None:
    """The status of a name from the answer of its script; None when the server keeps nothing for it."""
    match reply:
        case [bytes(now_text), bytes() | None as head, list(seats), list(queue), list(untils), list(places)]:
            pass
        case _:
            raise Unreadable
    if not now_text.isdigit():
        raise Unreadable
    if head is None and not queue:
        return None
    now = int(now_text)
    token, _, closed, _, kind, holder, seat = _read(_HEAD, head) if head is not None else (b"0",) + (None,) * 6
    held = [_Seat(token, "exclusive", seat)] if holder else []
    if kind in {b"shared", b"permit"}:
        for _, text in _pairs(seats):
            its_token, rest = _read(_HASHED_SEAT, text)
            held.append(_Seat(its_token, cast("Mode", kind.decode()), rest))
    ended = [one.expires + one.delay for one in held if one.expires <= now and one.delay]
    return NameStatus(
        name,
        int(token),
        tuple(
            HolderStatus(one.token, one.mode, one.about, (now - one.since) / 1e6, (one.expires - now) / 1e6)
            for one in sorted(held, key=lambda one: one.token)
            if one.expires > now
        ),
        tuple(_waiters(queue, dict(_pairs(untils)), dict(_pairs(places)), now)),
        max(max([int(closed or 0), *ended]) - now, 0) / 1e6,
    )


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _waiters(queue: list[Any], untils: dict[Any, Any], places: dict[Any, Any], now: int) -> Iterator[WaiterStatus]:
    for holder in queue:
        if holder not in untils or holder not in places:
            continue  # given up, or half evicted
        until = float(untils[holder])
        mode, _, since, _, _, _, _, about = _read(_PLACE, places[holder])
        if until > now:
            yield WaiterStatus(
                cast("Mode", mode.decode()),
                about.decode("utf-8", "replace"),
                (now - int(since)) / 1e6,
                patience_left(until, now),
            )
