"""``leasehold engines``: what each engine can do and what it guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from leasehold.cli.options import client
from leasehold.cli.output import listed, write_json
from leasehold.cli.shown import console, write_tables
from leasehold.core.engine import Capability, Facts
from leasehold.engines.described import described

if TYPE_CHECKING:
    from rich.table import Table

# What is not guaranteed comes first: it is what people need to know before they choose.
_GUARANTEES = {
    "not_guaranteed": "not guaranteed",
    "tokens": "tokens",
    "timekeeper": "who keeps time",
    "ends": "what ends a lease",
    "loss_told": "holder knows of a loss",
    "takeover": "takeover after a death",
    "failover": "failover",
    "proxies": "poolers and proxies",
    "enforce_with": "enforce it with",
}


@click.command(
    "engines",
    short_help="Show what each engine can do, and what it does not guarantee.",
    epilog="""\b
Examples:
  leasehold engines
  leasehold engines redis postgresql
  leasehold engines --on redis://db1:6379/0
  leasehold engines --json | jq -r '.engines[] | .engine, .guarantee.not_guaranteed'
""",
)
@click.argument("names", nargs=-1, metavar="[ENGINE]...")
@click.option("--on", metavar="URL", help="Only the engine behind this URL. It is not asked anything.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
def command(names: tuple[str, ...], on: str | None, as_json: bool) -> None:
    """Show the capabilities and guarantees of the built-in engines, of some of them, or of the one at a URL."""
    if names and on is not None:
        raise click.UsageError("names of engines and --on exclude each other")
    shown = _named(names) if on is None else [_facts(on)]
    if as_json:
        write_json({"engines": [as_data(facts) for facts in shown]})
        return
    for number, facts in enumerate(shown):
        if number:
            click.echo()
        write_tables(console(), [_table(facts, with_address=on is not None)])
    if on is None and not names:
        # So many lines scroll away; what stays on the screen says which to ask for.
        click.echo("\nIn short (leasehold engines NAME shows one of them):\n")
        write_tables(console(), [_in_short(shown)])


def _named(names: tuple[str, ...]) -> list[Facts]:
    known = {facts.engine: facts for facts in described()}
    if not set(names) <= set(known):  # what was written instead is not repeated: it may be a URL with a password
        raise click.UsageError(f"no such engine; there are {listed(list(known))}, and --on is for a URL")
    return [known[name] for name in names or known]


def _facts(url: str) -> Facts:
    with client(url, "") as locks:
        return locks.facts


def as_data(facts: Facts) -> dict[str, Any]:
    """One engine for scripts."""
    return {
        "engine": facts.engine,
        "address": facts.address,
        "least_ttl": facts.least_ttl,
        "extra_margin": facts.extra_margin,
        "fit_for_correctness": facts.guarantee.fit_for_correctness,
        "capabilities": {one.name.lower(): one in facts.capabilities for one in Capability},
        "guarantee": {key: getattr(facts.guarantee, key) for key in _GUARANTEES},
    }


def _in_short(shown: list[Facts]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    kinds = {
        "in order": Capability.FAIR,
        "shared": Capability.SHARED,
        "permits": Capability.PERMITS,
        "lock-delay": Capability.LOCK_DELAY,
    }
    table.add_row(*(Text(one.upper(), style="bold") for one in ("engine", "fit for", "ttl from", *kinds)))
    for facts in shown:
        fit = "correctness" if facts.guarantee.fit_for_correctness else "efficiency"
        has = ("yes" if one in facts.capabilities else "no" for one in kinds.values())
        table.add_row(*(Text(one) for one in (facts.engine, fit, f"{facts.least_ttl:g} s", *has)))
    return table


def _table(facts: Facts, *, with_address: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=90)
    fit = "fit for correctness" if facts.guarantee.fit_for_correctness else "for efficiency only"
    where = f" at {facts.address}" if with_address else ""
    table.add_row(Text(facts.engine, style="bold"), Text(f"{fit}; TTL from {facts.least_ttl:g} s{where}"))
    for key, heading in _GUARANTEES.items():
        style = "yellow" if key == "not_guaranteed" else ""
        table.add_row(Text(f"  {heading}"), Text(getattr(facts.guarantee, key), style=style))
    for heading, has in (("can", True), ("cannot", False)):
        lines = [one.value for one in Capability if (one in facts.capabilities) is has]
        for number, one in enumerate(lines):
            table.add_row(Text(f"  {heading}" if number == 0 else ""), Text(one))
    return table
