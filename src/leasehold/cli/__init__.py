"""The command `leasehold`: one file a verb. Nothing else imports it."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The command's entry point."""
    _open_missing_streams()
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
