"""The command `leasehold`: one file a verb. Nothing else imports it."""

from __future__ import annotations

import sys


def main() -> None:
    """The command's entry point."""
    from leasehold.cli.app import call

    sys.exit(call(sys.argv[1:]))
