"""``leasehold demo``: the story of a stalled holder, told by `leasehold.demo`."""

from __future__ import annotations

import click


@click.command(
    "demo",
    short_help="Watch a stalled holder's write being refused; no server is needed.",
    epilog="""\b
Example:
  leasehold demo
""",
)
def command() -> int:
    """Two workers, one lease; one is stopped past its time. Watch what its late write does, and how it is refused."""
    from leasehold.demo import main

    return main()
