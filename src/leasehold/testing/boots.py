"""Which boot of its host a process believes in: after a power loss it is another one.

The embedded engine tells boots apart, and so knows that commits may be lost and that whoever held is dead.
"""

from __future__ import annotations

from typing import Final

from leasehold.wires.boot_clock import system_clock

_MARK: Final = " and power losses that were made: "


def believe_in_boot(power_losses: int) -> None:
    """From the next opening of a lease file on, let it be the boot after so many power losses; 0 is the real one."""
    clock = system_clock()
    real = clock.boot.partition(_MARK)[0]
    clock.boot = f"{real}{_MARK}{power_losses}" if power_losses else real
