"""``leasehold advise``: a short interview, and what to use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from leasehold.advice.engines import SYSTEMS, Choice, choose
from leasehold.advice.tree import QUESTIONS, Leaf, Question, Step, walk
from leasehold.cli.output import write_json
from leasehold.errors import Misuse, quoted

_YES_NO = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


@click.command(
    "advise",
    short_help="Ask a few questions, and say which pattern and which engine to use.",
    epilog="""\b
Examples:
  leasehold advise                                       an interview
  leasehold advise -a harmless=no -a repeated=yes        no interview: the answers are here
  leasehold advise --from answers.toml --json            the same from a file, for scripts
  leasehold advise -a harmless=no -a repeated=yes --sample | python

\b
A file of answers:
  harmless = false
  repeated = true
  run = ["postgresql", "redis"]
  several_hosts = true
""",
)
@click.option("-a", "--answer", "given", multiple=True, metavar="QUESTION=yes|no", help="Answer a question beforehand.")
@click.option(
    "--run", multiple=True, type=click.Choice(list(SYSTEMS)), help="A system that you run already; repeatable."
)
@click.option("--several-hosts/--one-host", default=None, help="Whether the instances are on several hosts.")
@click.option("--from", "file", type=click.Path(path_type=Path, dir_okay=False), help="Answers in a TOML file.")
@click.option("--sample", is_flag=True, help="Print only the program.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
def command(  # noqa: PLR0917 - click gives each option a parameter
    given: tuple[str, ...],
    run: tuple[str, ...],
    several_hosts: bool | None,
    file: Path | None,
    sample: bool,
    as_json: bool,
) -> None:
    """Say which pattern to use, on which engine, what it guarantees and what would break it; with a program."""
    from_file = _read(file) if file is not None else {}
    answers = {**from_file.pop("answers", {}), **dict(map(_answer, given))}
    interview = sys.stdin.isatty() and sys.stdout.isatty() and not (sample or as_json)
    way, leaf = _interviewed(answers) if interview else _answered(answers)
    choice = None
    if leaf.needs_engine:
        systems = list(run) or from_file.get("run", [])
        hosts = several_hosts if several_hosts is not None else from_file.get("several_hosts")
        if interview and not systems:
            systems = _ask_systems()
        if interview and hosts is None:
            hosts = click.confirm("Are the instances on several hosts?", default=True)
        choice = choose(systems, protects_state=leaf.protects_state, several_hosts=hosts is not False)
    if sample:
        click.echo(leaf.sample, nl=False)
    elif as_json:
        write_json(_as_data(way, leaf, choice))
    else:
        _show(way, leaf, choice)


def _answer(text: str) -> tuple[str, bool]:
    name, _, word = text.partition("=")
    if name not in QUESTIONS or word.lower() not in _YES_NO:
        raise click.UsageError(
            f"{quoted(text)} is no answer; write QUESTION=yes or QUESTION=no, with one of {', '.join(QUESTIONS)}"
        )
    return name, _YES_NO[word.lower()]


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misuse(f"{quoted(str(file))} cannot be read as TOML: {quoted(str(error))}") from None
    run, hosts = said.pop("run", []), said.pop("several_hosts", None)
    if not isinstance(run, list) or not all(isinstance(one, str) for one in run):
        raise Misuse(f"run is a list of systems, such as ['redis'], not {quoted(run)}")
    if hosts is not None and not isinstance(hosts, bool):
        raise Misuse(f"several_hosts is true or false, not {quoted(hosts)}")
    for name, answer in said.items():
        if not isinstance(answer, bool):
            raise Misuse(f"the answer to {quoted(name)} is true or false, not {quoted(answer)}")
    return {"answers": said, "run": run, "several_hosts": hosts}


def _answered(answers: dict[str, bool]) -> tuple[list[Step], Leaf]:
    way, end = walk(answers)
    if isinstance(end, Question):
        raise Misuse(f"one answer is missing: {end.text} (-a {end.name}=yes or -a {end.name}=no)")
    return way, end


def _interviewed(answers: dict[str, bool]) -> tuple[list[Step], Leaf]:
    way, end = walk(answers)
    while isinstance(end, Question):
        click.echo()
        click.secho(f"  {end.why}", dim=True)
        answers[end.name] = click.confirm(click.style(end.text, bold=True))
        way, end = walk(answers)
    return way, end


def _ask_systems() -> list[str]:
    click.echo()
    for number, system in enumerate(SYSTEMS.values(), 1):
        click.echo(f"  {number}  {system.title}")
    while True:
        said = click.prompt(click.style("Which of these do you run already? (numbers)", bold=True), default="8")
        numbers = [part for part in said.replace(",", " ").split() if part]
        if numbers and all(part.isdigit() and 1 <= int(part) <= len(SYSTEMS) for part in numbers):
            return [list(SYSTEMS)[int(part) - 1] for part in numbers]
        click.echo(f"  Numbers from 1 to {len(SYSTEMS)}, please.")


def _as_data(way: list[Step], leaf: Leaf, choice: Choice | None) -> dict[str, Any]:
    return {
        "answers": {step.question.name: step.answer for step in way},
        "pattern": leaf.name,
        "title": leaf.title,
        "what": leaf.what,
        "guarantee": leaf.guarantee,
        "breaks": leaf.breaks,
        "page": leaf.page,
        "engine": choice._asdict() if choice is not None else None,
        "sample": leaf.sample,
    }


def _show(way: list[Step], leaf: Leaf, choice: Choice | None) -> None:
    from rich.console import Group
    from rich.syntax import Syntax
    from rich.text import Text

    from leasehold.cli.shown import console

    out = console()
    lines: list[Any] = [Text(f"\n{leaf.title}\n", style="bold green")]
    lines += [Text(f"  {step.question.text} {'Yes.' if step.answer else 'No.'}", style="dim") for step in way]
    parts = [("", leaf.what), ("Guarantee", leaf.guarantee), ("What would break it", leaf.breaks)]
    if choice is not None:
        parts.append(("Engine", f"{choice.engine}: {choice.why}\n{choice.url}"))
    for heading, text in parts:
        lines.append(Text(f"\n{heading}" if heading else "", style="bold"))
        lines.append(Text(text))
    lines.append(Text("\nA program that runs as it is, without a server\n", style="bold"))
    lines.append(Syntax(leaf.sample, "python", background_color="default") if out.is_terminal else Text(leaf.sample))
    lines.append(Text(f"More: {leaf.page} in the documentation", style="dim"))
    out.print(Group(*lines))
