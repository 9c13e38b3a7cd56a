"""One file with settings for the command: ``~/.config/leasehold/config.toml``, or what ``LEASEHOLD_CONFIG`` names.

It is not looked for in the working folder: two programs that are started in different folders must not end up with
different engines.
"""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from leasehold.errors import Misuse, quoted

_COLOURS = {"auto": {}, "always": {"FORCE_COLOR": "1"}, "never": {"NO_COLOR": "1"}}


class Config(NamedTuple):
    """What the file says."""

    url: str | None = None
    environment: Mapping[str, str] = {}
    """Variables to be set, unless they are set already."""
    defaults: Mapping[str, Mapping[str, Any]] = {}
    """For each verb, the settings of its options."""


def config_path(environment: Mapping[str, str]) -> Path | None:
    """Where the file is; None when there is none. One that is named must be there."""
    named = environment.get("LEASEHOLD_CONFIG")
    if named == "":
        return None
    if named is not None:
        if not Path(named).is_file():
            raise Misuse(f"LEASEHOLD_CONFIG names {quoted(named)}, which is not a file")
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", ""), ".config")  # noqa: PTH118
    path = Path(home) / "leasehold" / "config.toml"
    return path if path.is_absolute() and path.is_file() else None


def read(group: click.Group, environment: Mapping[str, str] = os.environ) -> Config:
    """Read the file, or raise a `Misuse` that says what is wrong with it."""
    path = config_path(environment)
    if path is None:
        return Config()
    where = quoted(str(path))
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise Misuse(f"cannot read {where}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{where} is not valid TOML: {error}") from None
    url, namespace = _text(document.pop("url", None), "url", where), document.pop("namespace", None)
    colour = document.pop("colour", "auto")
    if colour not in _COLOURS:
        raise Misuse(f"colour in {where} is 'auto', 'always' or 'never', not {quoted(colour)}")
    if url is not None:
        _check_private(path, url, where)
    defaults = {verb: _settings(group, verb, table, where) for verb, table in document.items()}
    if namespace is not None:
        _spread(group, defaults, _text(namespace, "namespace", where))
    return Config(url, _COLOURS[colour], defaults)


def _text(value: object, name: str, where: str) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise Misuse(f"{name} in {where} is a text between quotes, not {type(value).__name__}")
    return value


def _check_private(path: Path, url: str, where: str) -> None:
    """A password is nobody else's business."""
    from leasehold.cli.output import mask

    shared = sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077
    if shared and mask(url) != url:
        raise Misuse(f"{where} holds a password, and other users may read it; chmod 600")


def _settings(group: click.Group, verb: str, table: object, where: str) -> dict[str, Any]:
    """The table of one verb, with each setting checked against the verb's options."""
    context = click.Context(group, info_name="leasehold")
    command = group.get_command(context, verb)
    if command is None:
        verbs = ", ".join(group.list_commands(context))
        raise Misuse(f"{quoted(verb)} in {where} is neither url, namespace, colour nor a verb ({verbs})")
    if not isinstance(table, dict):
        raise Misuse(f"{quoted(verb)} in {where} must be a table: [{verb}]")
    options = _options(command)
    settings = {}
    for name, value in table.items():
        option = options.get(name)
        if option is None:
            known = ", ".join(sorted(options)) or "nothing"
            raise Misuse(f"[{verb}] in {where} has no setting {quoted(name)}; there is {known}")
        settings[str(option.name)] = _value(option, value, f"{name} of [{verb}] in {where}")
    return settings


def _options(command: click.Command) -> dict[str, click.Option]:
    """The long options of a verb, by their names without the dashes."""
    return {
        long[2:]: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for long in parameter.opts
        if long.startswith("--") and long != "--help"
    }


def _value(option: click.Option, value: object, what: str) -> object:
    if option.is_flag and option.is_bool_flag:
        if not isinstance(value, bool):
            raise Misuse(f"{what} is true or false")
        return value
    if isinstance(value, list) and option.multiple:
        return [str(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Misuse(f"{what} is a number, or a text between quotes, not {type(value).__name__}")
    return [str(value)] if option.multiple else str(value)


def _spread(group: click.Group, defaults: dict[str, dict[str, Any]], namespace: str | None) -> None:
    """Give the namespace to each verb that has one, unless its own table says otherwise."""
    context = click.Context(group, info_name="leasehold")
    for verb in group.list_commands(context):
        command = group.get_command(context, verb)
        if command is not None and "namespace" in _options(command):
            defaults.setdefault(verb, {}).setdefault("namespace", namespace)
