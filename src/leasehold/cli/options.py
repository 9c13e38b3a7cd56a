"""What several verbs take: the engine, the namespace, a name, a duration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from leasehold.errors import InvalidName, LeaseholdError, Misuse, quoted
from leasehold.names import check_name
from leasehold.opening import _BUILT_IN

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from leasehold import Leasehold

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})\s*(ms|s|m|h|d)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WITH_PASSWORD = re.compile(r"\S+://[^/\s]*:\S*@")
COMPLETE_WITHIN = 0.5
"""A shell that completes a name waits no longer for the engine."""


def seconds_in(text: str) -> float:
    """Read ``30``, ``1.5``, ``250ms``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{quoted(text)} is not a duration; write seconds, or 250ms, 90s, 15m, 2h, 1d")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    assert math.isfinite(seconds)
    return seconds


def is_engine_url(text: str) -> bool:
    """Whether the text is the URL of a built-in engine."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in _BUILT_IN


def read_duration(_ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A number of seconds, or a number with a unit."""
    if value is None:
        return None
    try:
        return seconds_in(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None


def read_name(_ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The name of a lock (or several), checked before anything else happens."""
    if isinstance(value, tuple):
        return tuple(read_name(_ctx, param, one) for one in value)
    if is_engine_url(value) or _WITH_PASSWORD.match(value):
        # Nobody means this to be a name. It is not shown: it may well hold a password.
        raise click.BadParameter("this is the URL of an engine, not the name of a lock; give it with --on", param=param)
    try:
        return check_name(value)
    except InvalidName as error:
        raise click.BadParameter(str(error), param=param) from None


def complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[Any] | str]:
    """Names that are held or waited for. A shell that completes must never see an error."""
    from itertools import islice

    try:
        with client(ctx.params.get("on"), ctx.params.get("namespace") or "", within=COMPLETE_WITHIN) as locks:
            known = list(islice(locks.names(), 200))
    except LeaseholdError:
        return []
    return [name for name in known if name.startswith(incomplete)]


def engine_options(function: F) -> F:
    """``--on`` and ``--namespace``."""
    on = click.option(
        "--on",
        metavar="URL",
        help="The engine, such as redis://host:6379/0 or sqlite:////path/to/file (see `leasehold engines`). By default "
        "LEASEHOLD_URL, or else an embedded file of your own. Put passwords into LEASEHOLD_URL: other users of the "
        "machine can see a command line.",
    )
    namespace = click.option("--namespace", metavar="NS", default="", help="Keep these names apart from others.")
    return on(namespace(function))


def checked_url(on: str | None) -> str | None:
    """What was given with --on, unless it is empty: a variable of a script that was not set."""
    if on == "":
        raise Misuse("--on is empty; give an engine's URL, or leave it out for the default")
    return on


def client(on: str | None, namespace: str, *, within: float | None = None, label: str | None = None) -> Leasehold:
    """The client for these options. Talks to nobody yet."""
    from leasehold.client import Leasehold
    from leasehold.settings import DEFAULT_REQUEST_TIMEOUT

    return Leasehold(
        checked_url(on), namespace=namespace, label=label, request_timeout=within or DEFAULT_REQUEST_TIMEOUT
    )
