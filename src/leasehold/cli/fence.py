"""``leasehold fence``: put a PostgreSQL table behind a fence, and show the floors of a database."""

from __future__ import annotations

from typing import Any

import click

from leasehold.cli.output import say, visible, write_json
from leasehold.cli.shown import console, write_tables
from leasehold.fences.sql_rule import TABLE
from leasehold.fences.trigger import install_sql, remove_sql
from leasehold.wires.fenced_database import Floor, fenced_database, floors_at


@click.group("fence", short_help="Put a table behind a fence, and show floors.")
def command() -> None:
    """Make the resource the judge: refuse stale writers where their writes would land."""


@command.command(
    "install",
    short_help="Print or apply the trigger that holds every writer of a table to a token.",
    epilog="""\b
Examples:
  leasehold fence install account
  leasehold fence install account --column id | psql
  leasehold fence install account --column id --apply --on postgresql://owner@db1/bank
  leasehold fence install account --remove
""",
)
@click.argument("table")
@click.option("--column", metavar="NAME", help="Each value of this column is a resource: TABLE/value.")
@click.option("--resource", metavar="NAME", help="Call the resource this instead of TABLE.")
@click.option("--schema", default="public", show_default=True, metavar="NAME", help="Where TABLE and its floors are.")
@click.option("--floors", default=TABLE, show_default=True, metavar="NAME", help="The table of floors.")
@click.option("--remove", is_flag=True, help="Take the fence off instead; the floors stay.")
@click.option("--apply", "apply_it", is_flag=True, help="Run it on the database at --on instead of printing it.")
@click.option("--on", metavar="URL", help="The database, for --apply.")
def install(
    *,
    table: str,
    column: str | None,
    resource: str | None,
    schema: str,
    floors: str,
    remove: bool,
    apply_it: bool,
    on: str | None,
) -> None:
    """Print (or with --apply run) the DDL that puts a PostgreSQL TABLE behind a fence.

    From then on each transaction that writes to it says its token first, whatever program it comes from:
    SELECT set_config('leasehold.token', '34', true)
    """
    sql = (
        remove_sql(table, schema=schema)
        if remove
        else install_sql(table, column=column, resource=resource, schema=schema, floors=floors)
    )
    if not apply_it:
        if on is not None:
            raise click.UsageError("--on goes with --apply; without it the DDL is printed")
        click.echo(sql, nl=False)
        return
    if on is None or not on.startswith(("postgresql://", "postgres://")):
        raise click.UsageError("--apply needs --on with the URL of a PostgreSQL database")
    with fenced_database(on) as connection:
        connection.execute(sql.removeprefix("BEGIN;\n").removesuffix("\nCOMMIT;\n"))
    say(f"{'the fence is off' if remove else 'every writer is now held to a token'}: {schema}.{table}")


@command.command(
    "status",
    short_help="Show the floors of a database or of Redis.",
    epilog="""\b
Examples:
  leasehold fence status --on postgresql://reader@db1/bank
  leasehold fence status --on redis://127.0.0.1:6379
  leasehold fence status --on sqlite:///accounts.db --json | jq '.floors[]'
""",
)
@click.option("--on", required=True, metavar="URL", help="What is protected: postgresql, mysql, sqlite or redis.")
@click.option("--table", default=TABLE, show_default=True, metavar="NAME", help="The table of floors.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N", help="At most so many."
)
def status(*, on: str, table: str, as_json: bool, limit: int) -> None:
    """Show which token each resource has seen last, and which has written last."""
    rows = floors_at(on, table, limit)
    floors, more = rows[:limit], len(rows) > limit
    if as_json:
        write_json({"floors": [_as_data(row) for row in floors], "more": more})
        return
    if not floors:
        click.echo("No token has been seen yet.")
        return
    write_tables(console(), [_table(floors)])
    if more:
        say(f"there are more than {limit} resources; --limit shows more of them")


def _as_data(row: Floor) -> dict[str, str | None]:
    """One resource for scripts: null stands for all that have no floor of their own, or for no writer yet."""
    return {
        "resource": row[0] or None,
        "token": str(row[1]),
        "written": str(row[2]) if row[2] >= 0 else None,
    }


def _table(rows: list[Floor]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("resource", overflow="ellipsis", no_wrap=True)
    table.add_column("highest token seen", justify="right", no_wrap=True)
    table.add_column("last writer", justify="right", no_wrap=True)
    for resource, token, written in rows:
        name = visible(resource) if resource else "(every other resource)"
        table.add_row(Text(name), str(token), str(written) if written >= 0 else "none")
    return table
