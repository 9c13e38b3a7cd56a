"""Verbs whose whole work, arguments and help included, belongs to another part of Leasehold."""

from __future__ import annotations

import importlib

import click


def forwarding(verb: str, module: str, about: str) -> click.Command:
    """A verb that passes its arguments to ``main(arguments)`` of a module, which returns an exit code or None."""

    @click.command(
        verb,
        help=about,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> int:
        code = importlib.import_module(module).main(list(arguments))
        return code if isinstance(code, int) else 0

    return command
