"""The whole story in twenty seconds: a holder stalls past its lease, wakes up, and its write is refused.

Two worker processes share one lease and one account. The first is really stopped (SIGSTOP) while it holds the lease.
The account is kept twice: once with a fence, once without, to show what a lock alone would have lost.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold import Leasehold, LeaseLost, StaleToken
from leasehold.fences import SqliteFence
from leasehold.worlds import boot_clock

if TYPE_CHECKING:
    from rich.console import Console

TTL = 1.5
FROZEN_FOR = 4.0
PATIENCE = 30.0


# --- the workers -----------------------------------------------------------------------------------------------------


def say(event: str, **facts: object) -> None:
    """Tell the narrator."""
    print(json.dumps({"at": boot_clock(), "event": event, **facts}), flush=True)


def work(folder: Path, amount: int, computing: float) -> None:
    """Add an amount to the account, by read, compute, write: what every critical section looks like."""
    database = sqlite3.connect(folder / "accounts.db", isolation_level=None)
    fence = SqliteFence(database)
    locks = Leasehold(folder / "leases.db")
    say("waits")
    try:
        with locks.lock("account", ttl=TTL, wait=PATIENCE, on_lost=lambda _loss: say("told")) as lease:
            say("holds", token=lease.token)
            with fence.reading("account", lease):
                balance = balance_of(database, "fenced")
            say("reads", balance=balance)
            lease.check()
            say("computes")
            time.sleep(computing)  # the first worker is stopped here, after its check and before its write
            database.execute("UPDATE account SET balance = ? WHERE kind = 'plain'", (balance + amount,))
            say("writes_plain", balance=balance + amount)
            with fence.writing("account", lease):
                database.execute("UPDATE account SET balance = ? WHERE kind = 'fenced'", (balance + amount,))
            say("writes", balance=balance + amount)
        say("releases")
    except StaleToken as refusal:
        say("refused", token=refusal.token, seen=refusal.seen)
    except LeaseLost:
        say("lost")
    finally:
        locks.close()
        database.close()


def balance_of(database: sqlite3.Connection, kind: str) -> int:
    """What an account holds."""
    (balance,) = database.execute("SELECT balance FROM account WHERE kind = ?", (kind,)).fetchone()
    return int(balance)


# --- the narrator ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """What a worker said, or what the narrator did to it."""

    at: float
    who: str
    what: str
    facts: dict[str, int]


def prepare(folder: Path) -> None:
    """Make the account, with 100 in it, once fenced and once plain."""
    database = sqlite3.connect(folder / "accounts.db", isolation_level=None)
    database.execute("CREATE TABLE account (kind TEXT PRIMARY KEY, balance INTEGER)")
    database.execute("INSERT INTO account VALUES ('fenced', 100), ('plain', 100)")
    SqliteFence(database).create()
    database.close()


def start_worker(folder: Path, amount: int, computing: float) -> subprocess.Popen[str]:
    """Start a worker in a process of its own."""
    command = [sys.executable, "-m", "leasehold.demo", "--worker", str(folder), str(amount), str(computing)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def events_of(who: str, worker: subprocess.Popen[str]) -> Iterator[Event]:
    """What a worker says, as it says it, until it ends."""
    assert worker.stdout is not None
    for line in worker.stdout:
        facts = json.loads(line)
        yield Event(facts.pop("at"), who, facts.pop("event"), facts)


class Story:
    """Starts the workers, stops the first at the worst moment, and tells what happens."""

    def __init__(self, folder: Path, tell: Callable[[Event], object]) -> None:
        self._folder, self._tell = folder, tell
        self.events: list[Event] = []
        self._workers: dict[str, subprocess.Popen[str]] = {}

    def run(self) -> list[Event]:
        """Play it to the end; no process outlives it."""
        try:
            self._workers["A"] = start_worker(self._folder, 10, computing=FROZEN_FOR - 1)
            for event in events_of("A", self._workers["A"]):
                self._note(event)
                if event.what == "computes":
                    self._freeze()
                    break
            self._workers["B"] = start_worker(self._folder, 50, computing=0.2)
            self._let_b_finish_then_thaw()
        finally:
            for process in self._workers.values():
                process.kill()
                process.communicate()
        return self.events

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._tell(event)

    def _freeze(self) -> None:
        time.sleep(0.2)
        os.kill(self._workers["A"].pid, signal.SIGSTOP)
        self._note(Event(boot_clock(), "A", "frozen", {}))

    def _let_b_finish_then_thaw(self) -> None:
        for event in events_of("B", self._workers["B"]):
            self._note(event)
        frozen_at = next(event.at for event in self.events if event.what == "frozen")
        time.sleep(max(frozen_at + FROZEN_FOR - boot_clock(), 0))
        self._note(Event(boot_clock(), "A", "thawed", {}))
        os.kill(self._workers["A"].pid, signal.SIGCONT)
        for event in events_of("A", self._workers["A"]):
            self._note(event)


# --- how it is shown -------------------------------------------------------------------------------------------------

LINES = {
    "waits": ("asks for the lease", "dim"),
    "holds": ("holds it, token {token}", "bold green"),
    "reads": ("reads the balance: {balance}", ""),
    "computes": ("checks its lease: fine. Computes…", ""),
    "frozen": ("❄ is stopped here (SIGSTOP)", "bold cyan"),
    "thawed": ("☀ wakes up, knowing nothing of it", "bold yellow"),
    "writes_plain": ("writes {balance}, plain", "yellow"),
    "writes": ("writes {balance}, fenced", "bold green"),
    "releases": ("releases the lease", "dim"),
    "told": ("its own clock tells it: lease lost", "magenta"),
    "refused": ("✗ its fenced write is REFUSED:\n  token {token} is stale,\n  {seen} was here before it", "bold red"),
    "lost": ("learns that the lease is lost", "magenta"),
}
LANE = 36


class Narrator:
    """Prints each event in its worker's lane."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: float | None = None

    def tell(self, event: Event) -> None:
        """One event, one line (or two)."""
        if self._started is None:
            self._started = event.at
        text, style = LINES[event.what]
        clock = f"{event.at - self._started:6.2f} s"
        facts = {key: f"…{value % 10**9:09}" if value > 10**9 else value for key, value in event.facts.items()}
        for line in text.format(**facts).splitlines():
            left, right = (line, "") if event.who == "A" else ("", line)
            lanes = f"{left:<{LANE}}{right}".rstrip()
            self._console.print(
                f"[dim]{clock:>8}[/]  [{style or 'default'}]{lanes}[/]", highlight=False, soft_wrap=True
            )
            clock = ""


def bar(events: list[Event], who: str, width: int = 64) -> str:
    """One worker's life as a bar: waiting, holding, frozen."""
    start, end = events[0].at, events[-1].at
    cells = [" "] * (width + 1)
    state = " "
    mine = [event for event in events if event.who == who]
    states = {"waits": "·", "holds": "█", "frozen": "░", "releases": " ", "refused": "✗", "lost": " "}
    marks = [
        (round((event.at - start) / (end - start) * width), states[event.what])
        for event in mine
        if event.what in states
    ]
    for (at, state), (until, _) in zip(marks, [*marks[1:], (width, "")], strict=True):
        cells[at : until + 1] = [state] * (until + 1 - at)
    if state == "✗":
        cells[marks[-1][0] :] = ["✗"]
    return "".join(cells).rstrip()


def conclude(console: Console, events: list[Event], fenced: int, plain: int) -> None:
    """Draw the time line, and say what it means."""
    took = next(event.at for event in events if event.who == "B" and event.what == "holds")
    frozen = next(event.at for event in events if event.what == "frozen")
    lines = [
        "",
        f"  worker A  [cyan]{bar(events, 'A')}[/]",
        f"  worker B  [green]{bar(events, 'B')}[/]",
        "            [dim]· waits   █ holds   ░ stopped   ✗ refused[/]",
        "",
        f"  B took over {took - frozen:.1f} s after A was stopped; A's lease was for {TTL} s.",
        f"  The fenced account holds [bold green]{fenced}[/]: B's 50 arrived, A's stale write did not.",
        f"  The plain account holds [bold red]{plain}[/]: A overwrote B's 50. A lock alone cannot prevent that.",
        "",
        '  [dim]In your code:[/]  with locks.lock("account") as lease, fence.writing("account", lease): …',
        "",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def main() -> int:
    """Tell the story; exits with 0 when the stale write was refused, as it must be."""
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        return 0
    from rich.console import Console

    console = Console()
    console.print(
        "\n  [bold]Two workers, one lease, one account with 100 in it.[/] A adds 10, B adds 50.\n", highlight=False
    )
    console.print(f"[dim]{'time':>8}  {'worker A':<{LANE}}worker B[/]", highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-") as name:
        folder = Path(name)
        prepare(folder)
        events = Story(folder, Narrator(console).tell).run()
        database = sqlite3.connect(folder / "accounts.db")
        fenced, plain = balance_of(database, "fenced"), balance_of(database, "plain")
        database.close()
    conclude(console, events, fenced, plain)
    return 0 if fenced == 150 and any(event.what == "refused" for event in events) else 1


if __name__ == "__main__":
    sys.exit(main())
