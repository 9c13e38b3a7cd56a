"""The command `leasehold`: one file a verb. Nothing else imports it."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """The command's entry point."""
    _open_missing_streams()
    _escape_what_cannot_be_shown()
    from leasehold.cli.app import call

    sys.exit(call(sys.argv[1:]))


def _open_missing_streams() -> None:
    """A caller may have closed standard streams; no pipe of ours may then get their numbers.

    What is opened here is closed again in programs that we start.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _escape_what_cannot_be_shown() -> None:
    """Names and texts may hold any letter, and a terminal or a pipe need not have it: it is then shown as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
