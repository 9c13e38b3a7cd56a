"""``leasehold demo``: forwards to the demonstration."""

from __future__ import annotations

from leasehold.cli.forward import forwarding

command = forwarding("demo", "leasehold.demo", "Watch a stalled holder's write being refused; no server is needed.")
