"""``leasehold serve``: a page, an API and metrics of what an engine tells."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import secrets
import signal
import sys
from typing import TYPE_CHECKING

import click

from leasehold.cli.exits import Interrupted
from leasehold.cli.options import client, engine_options, read_duration, read_name
from leasehold.cli.output import guard_secrets, say, write_json
from leasehold.errors import EngineError

if TYPE_CHECKING:
    from leasehold import Leasehold
    from leasehold.serve import Settings

TOKEN = "LEASEHOLD_SERVE_TOKEN"
DEFAULT_PORT = 8420
LEAST_INTERVAL, MOST_INTERVAL = 0.2, 3600.0
_HOST = re.compile(r"[a-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9a-f:]{2,39}\](:[0-9]{1,5})?", re.IGNORECASE)


@click.command(
    "serve",
    short_help="Serve a page, an API and metrics of what the engine tells.",
    epilog=f"""\b
Examples:
  leasehold serve
  leasehold serve --on redis://db1:6379/0 --port 9000
  leasehold serve --allow-break --election controller

\b
Environment:
  {TOKEN}   the token that lets in; by default a new one at each start
""",
)
@engine_options
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any free one.")
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help=f"Another address than the loopback's needs {TOKEN} and --host, and a proxy with TLS in front of it.",
)
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name by which others reach this server.")
@click.option("--allow-break", is_flag=True, help="Allow to release names by force, through the page and the API.")
@click.option(
    "--election",
    "elections",
    multiple=True,
    callback=read_name,
    metavar="NAME",
    help="Show this name as an election: its leader, its term and its candidates.",
)
@click.option(
    "--every",
    callback=read_duration,
    default="2",
    show_default=True,
    metavar="SECONDS",
    help="How often to look at the engine while somebody watches; otherwise a fifth as often.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address and the token as a JSON object.")
def command(
    *,
    on: str | None,
    namespace: str,
    port: int,
    listen: str,
    hosts: tuple[str, ...],
    allow_break: bool,
    elections: tuple[str, ...],
    every: float,
    as_json: bool,
) -> None:
    """Serve a page with names, holders, waiters and what happened to them, live; an API; and metrics.

    Only this machine can reach it, and only who has the token that is printed. It changes nothing, unless --allow-break
    is given, and looks at a bounded number of names at a time.
    """
    from leasehold.serve import Settings

    if not LEAST_INTERVAL <= every <= MOST_INTERVAL:
        raise click.UsageError(f"--every takes from {LEAST_INTERVAL:g} to {MOST_INTERVAL:g} seconds")
    settings = Settings(
        token=_token(),
        address=_address(listen, hosts),
        port=port,
        hosts=hosts,
        can_break=allow_break,
        every=every,
        namespace=namespace,
        elections=elections,
    )
    with client(on, namespace) as locks:
        _look_once(locks)
        asyncio.run(_serve(locks, settings, as_json=as_json))


def _look_once(locks: Leasehold) -> None:
    """End at once, as other verbs do, where nothing can get better by itself; an engine that is away may come back."""
    with contextlib.suppress(EngineError):  # the rounds tell of it
        locks.status("leasehold-serve")


def _token() -> str:
    """The token from the environment, or a new one. It is masked in whatever else is written."""
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    guard_secrets([f"serve://:{token}@"])
    return token


def _address(listen: str, hosts: tuple[str, ...]) -> str:
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise click.UsageError(
                "--host takes a name such as locks.example.com, with a port if it is not the usual one"
            )
    try:
        address = ipaddress.ip_address(listen)
    except ValueError:
        raise click.UsageError("--listen takes an IP address, such as 127.0.0.1 or ::1") from None
    if not address.is_loopback:
        if not os.environ.get(TOKEN) or not hosts:
            raise click.UsageError(
                f"others can reach {listen}: choose a token of your own in {TOKEN} and name this server with --host"
            )
        say(f"warning: {listen} is served without TLS; put a proxy that has it in front, or stay on the loopback")
    return listen


async def _serve(locks: Leasehold, settings: Settings, *, as_json: bool) -> None:
    """Until Ctrl-C, or a signal that asks to end."""
    from leasehold.serve import serving

    asked = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not asked.done():
            asked.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    async with serving(locks, settings) as server:
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        url = f"http://{settings.hosts[0] if settings.hosts else f'{host}:{server.port}'}/"
        if as_json:
            write_json({"url": url, "port": server.port, "token": settings.token, "can_break": settings.can_break})
        else:
            click.echo(f"{url}#{settings.token}")
            sys.stdout.flush()
            say(f"serving {locks.facts.engine} at {locks.facts.address}; the address lets in: show it to nobody")
        number = await asked
    if number != signal.SIGINT:
        raise Interrupted(signal.Signals(number))
