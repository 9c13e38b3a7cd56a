"""The simulator's command: explore many seeds, or replay one and draw it."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.table import Table

from leasehold.sim.engine_mutations import mutations_of
from leasehold.sim.many import CORES, bar, telling
from leasehold.sim.plan import BEYOND, ELSEWHERE, TABLE, UNBEARABLE, WITHIN
from leasehold.sim.runner import PROPERTIES, Tally, explore, first_caught, run
from leasehold.sim.sites import KINDS
from leasehold.sim.timeline import draw

EXAMPLES = """\
examples:
  python -m leasehold.sim --histories 20000 --jobs 2
      explore 20,000 seeds on two processes, and sum up what happened
  python -m leasehold.sim --seed 4711
      run one seed again, exactly as it was, and draw its time line
  python -m leasehold.sim --seed 56 --mutation regrant-without-rearming
      the same with a bug planted
  python -m leasehold.sim --hunt
      plant every bug in turn, and see which judge catches it
  python -m leasehold.sim --engine etcd --histories 2000
      the same with the etcd engine's own code before a model of etcd
"""
MOST_SHOWN = 10
NEWEST = 1000
"""Of so many violations the seeds are looked at each time: more than one portion of histories has."""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m leasehold.sim",
        description="Run Leasehold's own algorithms in simulated worlds that misbehave, and judge what happened.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--histories", type=_positive, metavar="N", help="explore this many seeds")
    what.add_argument("--seed", type=int, metavar="SEED", help="run one seed and draw its time line")
    what.add_argument("--hunt", action="store_true", help="plant each known bug and tell which judge catches it")
    made.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed to explore (default: 0)")
    made.add_argument("--jobs", type=_positive, default=CORES, metavar="N", help="processes (default: all cores)")
    made.add_argument(
        "--engine", choices=sorted(KINDS), default=TABLE.engine, help=f"whose code to run (default: {TABLE.engine})"
    )
    made.add_argument("--mutation", metavar="NAME", help="plant a bug; --hunt shows the names")
    made.add_argument("--all", action="store_true", help="with --seed: tell the whole story, not only a part")
    return made


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 1 when a claim is broken (or, in a hunt, a bug is not caught)."""
    asked = parser().parse_args(arguments)
    try:
        return _done(asked)
    except ModuleNotFoundError as missing:
        from leasehold.opening import how_to_get

        explained = how_to_get(missing, f"the simulator of {asked.engine}")
        if explained is None:
            raise
        parser().error(str(explained))


def _done(asked: argparse.Namespace) -> int:
    if asked.mutation is not None and asked.mutation not in mutations_of(asked.engine):
        parser().error(f"--mutation: {asked.mutation!r} is no bug of the engine {asked.engine}; --hunt shows the names")
    console = Console(highlight=False)
    if asked.seed is not None:
        history, violations = run(asked.seed, asked.mutation, asked.engine)
        draw(console, history, violations, mutation=asked.mutation, everything=asked.all)
        return 1 if violations else 0
    if asked.hunt:
        return _hunt(console, asked.engine)
    seeds = range(asked.first, asked.first + asked.histories)
    return _explore(console, seeds, asked.engine, asked.jobs, asked.mutation)


def _explore(console: Console, seeds: range, engine: str, jobs: int, mutation: str | None) -> int:
    began, shown = time.monotonic(), set[int]()

    def see(so_far: Tally) -> None:
        """Show what was found at once: there may be an hour to go."""
        tell(so_far.histories, len(so_far.violations))
        for seed, violation in so_far.violations[-NEWEST:]:
            if seed not in shown and len(shown) < MOST_SHOWN:
                shown.add(seed)
                console.print(f"[red]✗[/] {violation.judge}: {violation.text}", soft_wrap=True)
                console.print(f"  replay it:  {replay_command(seed, mutation, engine)}", soft_wrap=True, style="bold")

    with telling(len(seeds), console) as tell:
        tally = explore(seeds, engine=engine, jobs=jobs, mutation=mutation, progress=see)
    console.print(_summary(tally, engine, time.monotonic() - began))
    return 1 if tally.violations else 0


def replay_command(seed: int, mutation: str | None = None, engine: str = TABLE.engine) -> str:
    """What to type to see a history again."""
    which = f" --engine {engine}" if engine != TABLE.engine else ""
    return f"python -m leasehold.sim{which} --seed {seed}" + (f" --mutation {mutation}" if mutation else "")


def _summary(tally: Tally, engine: str, seconds: float) -> Table:
    table = Table(show_header=False, title="what happened", title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_row("histories", f"{tally.histories:,}", f"{tally.histories / seconds:,.0f} a second, {seconds:.0f} s")
    table.add_row("events", f"{tally.events:,}", f"{tally.events / tally.histories:,.0f} each")
    table.add_row("leases", f"{tally.leases:,}")
    table.add_row("losses told", f"{tally.losses_told:,}")
    table.add_row("stale accesses refused", f"{tally.stale_refused:,}")
    for kind, text in (("none", "no fence"), ("writes", "a fence on writes"), ("both", "a fence on reads and writes")):
        table.add_row("updates lost", f"{tally.updates_lost[kind]:,}", f"where there is {text}")
    table.add_section()
    faults = KINDS[engine].traits.faults
    for kind, text in (WITHIN | ELSEWHERE | BEYOND).items():
        if kind not in faults:
            continue
        count = "histories" if kind in PROPERTIES else "times"
        table.add_row(kind, f"{tally.faults[kind]:,}", f"{count}: {text}" + (" (beyond)" if kind in UNBEARABLE else ""))
    table.add_section()
    colour = "red" if tally.violations else "green"
    table.add_row("violations", f"[{colour}]{len(tally.violations):,}[/]")
    return table


def _hunt(console: Console, engine: str) -> int:
    missed, mutations = 0, mutations_of(engine)
    with bar(console) as progress:
        task = progress.add_task("bugs", total=len(mutations), note="")
        for mutation in mutations.values():
            progress.update(task, advance=1, note=mutation.name)
            found = first_caught(mutation.name, range(1500), engine)
            if found is None:
                missed += 1
                console.print(f"[red]✗[/] {mutation.name}: not caught in 1,500 histories", soft_wrap=True)
            else:
                seed, violation = found
                console.print(
                    f"[green]✓[/] [bold]{mutation.name}[/] by [cyan]{violation.judge}[/] at seed {seed}\n"
                    f"  [dim]{mutation.bug}[/]",
                    soft_wrap=True,
                )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
