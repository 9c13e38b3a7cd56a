"""``leasehold break``: release by force, as an operator."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click

from leasehold.cli import exits
from leasehold.cli.options import client, complete_name, engine_options, read_name
from leasehold.cli.output import say, write_json
from leasehold.cli.shown import console, details
from leasehold.errors import quoted
from leasehold.roster import as_data

if TYPE_CHECKING:
    from leasehold import NameStatus


@click.command(
    "break",
    short_help="Release a name by force.",
    epilog="""\b
Examples:
  leasehold break nightly-export --because "its host is gone"
  leasehold break nightly-export --because "stuck since 3 am" --yes

\b
Exit codes:
  0   released
  1   nobody held it, or you said no
  64  the arguments cannot be right        78  the engine could not be reached
""",
)
@click.argument("name", callback=read_name, shell_complete=complete_name, metavar="NAME")
@engine_options
@click.option("--because", required=True, metavar="TEXT", help="Why; it is logged.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@click.option("--json", "as_json", is_flag=True, help="Print the new token and who was hit as a JSON object.")
def command(*, name: str, on: str | None, namespace: str, because: str, yes: bool, as_json: bool) -> int:
    """End every lease on NAME, whoever holds it.

    The holder is told at its next renewal, which may be a third of its TTL away, and may write until then. Announce
    the new token at the resource's fence to have its writes refused from that moment on.
    """
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on; add --yes if it is meant")
    logging.getLogger("leasehold").setLevel(logging.ERROR)  # what it would log is what we show
    with client(on, namespace) as locks:
        status = locks.status(name)
        if status is None or not status.holders:
            say(f"nobody holds {quoted(name)}; there is nothing to break")
            return exits.NOTHING_DONE
        if not yes and not _is_meant(status):
            return exits.NOTHING_DONE
        token = locks.force_release(name, because=because)
    if as_json:
        write_json({"name": name, "token": str(token), "because": because, "was": as_data(status)})
    else:
        click.echo(f"Released {quoted(name)} by force. Its next token is above {token}.")
        click.echo(f"Announce token {token} at the fence of the resource: until then a late write may pass.")
    return exits.OK


def _is_meant(status: NameStatus) -> bool:
    console(err=True).print(details(status))
    return click.confirm("Release it by force?", err=True)
