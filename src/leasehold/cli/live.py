"""The live view of ``leasehold status --watch``: readable, and light on the engine, with ten thousand names."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from leasehold.cli.keys import Keyboard
from leasehold.cli.output import duration, visible
from leasehold.cli.shown import console, details, one_line_each
from leasehold.core.engine import NameStatus
from leasehold.errors import EngineError
from leasehold.roster import ORDERS, Findings, Page, Roster, Row, Scout, View

if TYPE_CHECKING:
    from rich.console import Console, ConsoleDimensions, RenderableType
    from rich.live import Live
    from rich.text import Text

SHARE: Final = 0.25
"""The part of the interval that a round may keep the engine busy."""
_AROUND: Final = 5
"""Lines around the table: time, totals, blank, heading, and the line at the bottom."""
_STYLES: Final = {"overdue": "yellow", "closed": "magenta", "free": "dim", "held": ""}
_KEYS_OF_DETAILS: Final = "Esc back   q quit"
_KEYS: Final = "q quit   / search   Enter details   w only waited for   o order   ↑↓ PgUp PgDn move"
_LONGEST_SEARCH: Final = 255


@dataclass(frozen=True)
class Wish:
    """What the person wants to see; keys change it."""

    view: View
    selected: int = 0
    typing: bool = False
    """Whether keys go into the search."""
    name: str | None = None
    """The name whose details are shown."""
    over: bool = False

    def after(self, key: str, *, shown: Sequence[Row], matching: int, room: int) -> Wish:
        """The wish after one more key."""
        if self.typing:
            return self._typed(key)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -room, "page down": room, " ": room}
        moves |= {"home": -matching, "g": -matching, "end": matching, "G": matching}
        if key in moves and self.name is None:
            return replace(self, selected=min(max(self.selected + moves[key], 0), max(matching - 1, 0)))
        if self.name is not None:
            return self._left_details(key)
        match key:
            case "/":
                return replace(self, typing=True)
            case "enter" if shown:
                return replace(self, name=shown[min(self.selected % room, len(shown) - 1)].status.name)
            case _:
                return replace(self, over=key == "q", view=_viewed(self.view, key), selected=self._kept(key))

    def _left_details(self, key: str) -> Wish:
        return replace(self, over=key == "q", name=None if key in ("escape", "enter", "backspace") else self.name)

    def _kept(self, key: str) -> int:
        """A list in another order is looked at from its beginning."""
        return self.selected if _viewed(self.view, key) == self.view else 0

    def _typed(self, key: str) -> Wish:
        text = self.view.text
        match key:
            case "enter":
                return replace(self, typing=False)
            case "escape":
                return replace(self, typing=False, view=replace(self.view, text=""), selected=0)
            case "backspace":
                text = text[:-1]
            case "clear":
                text = ""
            case _ if len(key) == 1:
                text = (text + key)[:_LONGEST_SEARCH]
            case _:
                return self
        return replace(self, view=replace(self.view, text=text), selected=0)


def _viewed(view: View, key: str) -> View:
    """The view after a key that changes it."""
    match key:
        case "w":
            return replace(view, only="all" if view.only == "waited" else "waited")
        case "o":
            return replace(view, order=ORDERS[(ORDERS.index(view.order) + 1) % len(ORDERS)])
        case "escape":
            return replace(view, text="", only="all")
        case _:
            return view


class _Rounds:
    """Looks at the engine in a thread of its own, so that keys are answered while it is slow."""

    def __init__(self, scout: Scout, roster: Roster) -> None:
        self._scout, self._roster = scout, roster
        self.error: EngineError | None = None
        self.latest: Mapping[str, NameStatus | None] = {}
        """What the latest round saw, also of names that are free."""
        self.ready, self._tell = os.pipe()
        self._thread: threading.Thread | None = None
        self._found: Findings | Exception | None = None

    def start(self, first: Sequence[str], view: View, *, within: float) -> None:
        """Begin a round, unless one is under way."""
        if self._thread is None:
            rest = self._roster.due(view, now=time.monotonic())
            known = self._roster.known
            arguments = (tuple(first), rest, known, within)
            self._thread = threading.Thread(target=self._look, args=arguments, name="leasehold-status", daemon=True)
            self._thread.start()

    def _look(self, first: Sequence[str], rest: Sequence[str], known: frozenset[str], within: float) -> None:
        try:
            self._found = self._scout.look(first, rest, known=known, within=within)
        except Exception as error:  # noqa: BLE001 -- told by `take_in`, in the thread that can end the command
            self._found = error
        os.write(self._tell, b".")

    def take_in(self) -> None:
        """Note what the round found that has just told that it is over."""
        os.read(self.ready, 64)
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        match self._found:
            case Findings() as found:
                self.error, self.latest = None, found.statuses
                self._roster.note(found)
            case EngineError() as error:
                self.error = error
            case Exception() as error:
                raise error
            case None:
                raise AssertionError("a round told that it was over, and had found nothing")

    def end(self) -> None:
        """Wait a moment for the round that is under way; the engine is about to be closed."""
        if self._thread is not None:
            self._thread.join(2.0)


class Screen:
    """The picture, and the loop that keeps it true."""

    def __init__(self, scout: Scout, view: View, *, interval: float, where: str, names: tuple[str, ...]) -> None:
        self._interval, self._where, self._names = interval, where, names
        self._roster = Roster()
        self._rounds = _Rounds(scout, self._roster)
        self._wish = Wish(view)
        self._rounds_seen = 0

    def run(self) -> None:
        """Show it until the person has had enough."""
        from rich.live import Live

        screen = console()
        with (
            Keyboard() as keyboard,
            Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            try:
                self._loop(keyboard, live, screen)
            finally:
                self._rounds.end()

    def _loop(self, keyboard: Keyboard, live: Live, screen: Console) -> None:
        next_round = time.monotonic()
        while not self._wish.over:
            room = max(screen.size.height - _AROUND, 1)
            page = self._page(room)
            if time.monotonic() >= next_round:
                self._rounds.start(self._shown(page), self._wish.view, within=self._interval * SHARE)
                next_round = time.monotonic() + self._interval
            live.update(self.picture(screen.size, page, room), refresh=True)
            listening = [self._rounds.ready, *([keyboard.descriptor] if keyboard.descriptor is not None else [])]
            ready, _, _ = select.select(listening, [], [], max(next_round - time.monotonic(), 0.0))
            if self._rounds.ready in ready:
                self._rounds.take_in()
                self._rounds_seen += 1
            if keyboard.descriptor in ready:
                for key in keyboard.read():
                    page = self._page(room)
                    self._wish = self._wish.after(key, shown=page.rows, matching=page.matching, room=room)

    def _shown(self, page: Page) -> list[str]:
        """The names that the person sees, which are looked at in every round."""
        if self._names:
            return list(self._names)
        return [self._wish.name] if self._wish.name is not None else [row.status.name for row in page.rows]

    def _page(self, room: int) -> Page:
        start = self._wish.selected // room * room
        page = self._wish.view.page(self._roster, start=start, limit=room)
        if page.matching and not page.rows:  # there were more before: stay at the end
            self._wish = replace(self._wish, selected=page.matching - 1)
            return self._page(room)
        return page

    def picture(self, size: ConsoleDimensions, page: Page, room: int) -> RenderableType:
        """What is to be seen now."""
        from rich.console import Group
        from rich.text import Text

        told = f"{time.strftime('%H:%M:%S')}, every {self._interval:g} s, {self._where}"
        title = Text(told, style="dim", no_wrap=True, overflow="ellipsis")
        error = self._rounds.error
        if error is not None:
            return Group(title, Text(""), Text(visible(str(error)), style="red"))
        now = time.monotonic()
        if self._names or self._wish.name is not None:
            names = self._names or (self._wish.name or "",)
            statuses = [self._now(name, now) for name in names]
            keys = _KEYS_OF_DETAILS if self._wish.name is not None else "q quit"
            shown = [details(status, most_waiters=max(room - 2, 1)) for status in statuses]
            return Group(title, Text(""), *shown, Text(""), Text(keys, style="dim"))
        lines: list[RenderableType] = [title, self._totals(page), Text("")]
        if page.rows:
            styled = [(row.at(now), self._style(number, row, room)) for number, row in enumerate(page.rows)]
            lines.append(one_line_each(styled, width=size.width))
        else:
            lines.append(Text(self._nothing()))
        return Group(*lines, self._bottom(page, room))

    def _now(self, name: str, now: float) -> NameStatus:
        row = self._roster.rows.get(name)
        free = self._rounds.latest.get(name) or NameStatus(name, 0, (), ())
        return row.at(now) if row is not None else free

    def _style(self, number: int, row: Row, room: int) -> str:
        style = _STYLES[row.state] + (" bold" if row.status.waiters else "")
        return f"{style} reverse".strip() if number == self._wish.selected % room else style.strip()

    def _nothing(self) -> str:
        if not self._rounds_seen:
            return "Looking…"
        if self._roster.rows:
            return "No name matches; Esc shows all."
        return "Nothing is held and nobody waits."

    def _totals(self, page: Page) -> Text:
        from rich.text import Text

        totals = self._roster.totals()
        told = [
            _several(totals.names, "name", "+" if self._roster.more or not self._roster.complete else ""),
            _several(totals.holders, "holder"),
            _several(totals.waiters, "waiter")
            + (f" for {_several(totals.waited_for, 'name')}" if totals.waiters else ""),
            *([f"longest wait {duration(totals.longest_wait)}"] if totals.waiters else []),
            *([f"{totals.overdue:,} overdue"] if totals.overdue else []),
            *([f"{totals.lost:,} ran out"] if totals.lost else []),
            *([f"{totals.unseen:,} not looked at yet"] if totals.unseen else []),
        ]
        view = self._wish.view
        if view.text or view.only != "all":
            wanted = " ".join(
                [*([repr(view.text)] if view.text else []), *(["waited for"] if view.only != "all" else [])]
            )
            told.append(f"{page.matching:,} match {wanted}")
        return Text(" · ".join(told), no_wrap=True, overflow="ellipsis")

    def _bottom(self, page: Page, room: int) -> Text:
        from rich.text import Text

        if self._wish.typing:
            return Text(f"/{visible(self._wish.view.text)}█", no_wrap=True)
        first = self._wish.selected // room * room
        place = f"{first + 1:,}-{first + len(page.rows):,} of {page.matching:,} by {self._wish.view.order}   "
        return Text((place if page.rows else "") + _KEYS, style="dim", no_wrap=True, overflow="ellipsis")


def _several(count: int, what: str, more: str = "") -> str:
    """A number of things.

    >>> [_several(1, "waiter"), _several(1200, "name", "+")]
    ['1 waiter', '1,200+ names']
    """
    return f"{count:,}{more} {what}" if count == 1 and not more else f"{count:,}{more} {what}s"
