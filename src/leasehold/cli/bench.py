"""``leasehold bench``: forwards to the benchmark."""

from __future__ import annotations

from leasehold.cli.forward import forwarding

command = forwarding("bench", "leasehold.bench.__main__", "Measure an engine beside peers and its own raw cost.")
