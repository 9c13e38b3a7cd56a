"""A history drawn as text: lanes over time, a closer look at where it went wrong, and the story line by line."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from leasehold.sim.history import History
from leasehold.sim.judges import Violation
from leasehold.sim.lanes import Lanes
from leasehold.sim.plan import BEYOND, ELSEWHERE, WITHIN
from leasehold.sim.record import Record
from leasehold.sim.story import Story

LABEL = 9
"""The width of what stands before a chart."""
COLOURS = ("blue", "magenta", "cyan", "green")


def draw(
    console: Console,
    history: History,
    violations: list[Violation],
    *,
    mutation: str | None = None,
    everything: bool = False,
) -> None:
    """Draw it all."""
    record = Record(history)
    lanes = Lanes(record, dict(zip(record.names, COLOURS, strict=False)))
    console.print(_header(history, mutation))
    console.print(_legend(lanes))
    console.print()
    width = max(console.width - LABEL - 1, 40)
    marks = [violation.at for violation in violations]
    for line in _chart(lanes, 0.0, history.ended_at, width, marks):
        console.print(line, no_wrap=True, overflow="crop")
    since, until = _window(record, violations)
    if violations:
        console.print(Text(f"\ncloser, from {since:.2f} s to {until:.2f} s\n", style="bold"))
        for line in _chart(lanes, since, until, width, marks):
            console.print(line, no_wrap=True, overflow="crop")
    console.print()
    if everything or violations:
        whole = (0.0, history.ended_at)
        for line in Story(record, lanes, violations).tell(*(whole if everything else (since, until))):
            console.print(line, soft_wrap=True)
    console.print(_verdict(violations, everything=everything))


def _header(history: History, mutation: str | None) -> Panel:
    plan = history.plan
    text = Text()
    text.append(f"{sum(plan.workers)} workers on {len(plan.workers)} hosts", style="bold")
    text.append(f", names {', '.join(plan.names)}")
    if plan.permits:
        text.append(f", and p with {plan.permits} permits")
    text.append(f"; TTLs around {plan.ttl:g} s")
    if plan.lock_delay:
        text.append(f", lock-delays up to {plan.lock_delay:g} s")
    text.append(f"; a request may take {plan.request_timeout:g} s\n")
    if not plan.kinds:
        text.append("Nothing goes wrong.", style="green")
    for kind in plan.kinds:
        text.append(f"\n{kind:>10} ", style="bold red" if kind in BEYOND else "bold yellow")
        text.append((WITHIN | ELSEWHERE | BEYOND)[kind], style="default")
    title = f"seed {history.seed}" + (f", with the bug “{mutation}”" if mutation else "")
    return Panel(text, title=title, title_align="left")


def _legend(lanes: Lanes) -> Text:
    text = Text()
    for name, colour in lanes.colours.items():
        text.append("█", style=colour)
        text.append(f" holds {name}  ")
    text.append("░ waits  ▒ paused  ", style="default")
    text.append("✝", style="red")
    text.append(" dead  · idle  ↯ fault  ")
    text.append("▼", style="bold red")
    text.append(" violation")
    return text


def _chart(lanes: Lanes, since: float, until: float, width: int, marks: list[float]) -> Iterator[Text]:
    """Lanes over time: one column is a slice of it."""
    step = (until - since) / width
    yield _axis(since, step, width)
    if marks:
        line = Text(" " * (LABEL + 1))
        columns = {int((at - since) / step) for at in marks}
        for column in range(width):
            line.append("▼" if column in columns else " ", style="bold red")
        yield line
    for lane in lanes.names:
        line = Text(f"{lane:>{LABEL}} ", style="bold")
        for column in range(width):
            line.append_text(lanes.cell(lane, since + column * step, since + (column + 1) * step))
        yield line
    line = Text(f"{'faults':>{LABEL}} ", style="bold")
    for column in range(width):
        struck = lanes.fault_within(since + column * step, since + (column + 1) * step)
        line.append("↯" if struck else " ", style="yellow")
    yield line


def _axis(since: float, step: float, width: int) -> Text:
    line = " " * (LABEL + 1)
    for column in range(0, width, 12):
        label = f"{since + column * step:.1f}" if step * 12 >= 0.2 else f"{since + column * step:.2f}"
        line += f"│{label}".ljust(12)
    return Text(line[: LABEL + 1 + width], style="dim")


def _window(record: Record, violations: list[Violation]) -> tuple[float, float]:
    """The part of the history that the first violation is about."""
    if not violations:
        return 0.0, record.ended_at
    first = violations[0]
    began = [attempt.began.at for attempt in record.attempts if attempt.began.holder in first.holders]
    since = max(min(began, default=first.at), first.at - 8 * record.plan.longest_ttl)
    since = min(since, first.at - record.plan.ttl)
    return max(since - 0.1, 0.0), min(first.at + record.plan.ttl, record.ended_at)


def _verdict(violations: list[Violation], *, everything: bool) -> Panel:
    if not violations:
        hint = "" if everything else "\nThe whole story: add --all."
        return Panel(Text(f"All judges are content.{hint}"), border_style="green")
    text = Text()
    for violation in violations[:10]:
        text.append(f"{violation.at:8.3f}  {violation.judge}: ", style="bold red")
        text.append(f"{violation.text}\n")
    if len(violations) > 10:
        text.append(f"… and {len(violations) - 10} more\n")
    text.rstrip()
    return Panel(text, title="violations", title_align="left", border_style="red")
