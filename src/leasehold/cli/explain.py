"""``leasehold explain``: the page of a lint rule, or the list of all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from leasehold.cli.output import complain

if TYPE_CHECKING:
    from leasehold.lint.rule import Rule


@click.command(
    "explain",
    short_help="Explain a finding of lint: why it is dangerous, and what to write instead.",
    epilog="""\b
Examples:
  leasehold explain                        list every rule
  leasehold explain LH110                  the page of one
  leasehold explain unconditional-release  the same, by its name
""",
)
@click.argument("code", required=False, metavar="[CODE]")
def command(code: str | None) -> int:
    """Show the page of the rule CODE, such as LH110; without it, list all rules."""
    from leasehold.lint.finding import LintError
    from leasehold.lint.rule import rule_named

    if code is None:
        _list()
        return 0
    try:
        found = rule_named(code)
    except LintError as error:
        complain("leasehold explain", str(error))
        return 2
    _show(found)
    return 0


def _list() -> None:
    from leasehold.lint.rule import all_rules

    family = ""
    for one in all_rules():
        if one.family != family:
            sys.stdout.write(f"{'' if not family else chr(10)}{one.family}\n")
            family = one.family
        only = "" if one.by_default else "  (only when selected)"
        sys.stdout.write(f"  {one.code}  {one.name:<30} {one.title}{only}\n")
    sys.stdout.flush()


def _show(one: Rule) -> None:
    only = "" if one.by_default else "; runs only when selected"
    heading = f"# {one.code} {one.name}\n\nFamily: {one.family}{only}.\n\n"
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(heading + one.page.replace("```py\n", "```python\n")))
        return
    sys.stdout.write(f"{heading}{one.page}\n")
    sys.stdout.flush()
