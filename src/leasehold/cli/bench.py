"""``leasehold bench``: everything, its help included, is done by `leasehold.bench`."""

from __future__ import annotations

import click


@click.command(
    "bench",
    help="Measure an engine beside peers and its own raw cost.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Forward the arguments as they are."""
    from leasehold.bench import main

    return main(list(arguments))
