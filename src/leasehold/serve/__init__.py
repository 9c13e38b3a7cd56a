"""``leasehold serve``: a page for operators, an API, and metrics of what an engine tells.

For one person at the same machine by default: it listens on the loopback, knows its own host names, and lets in who has
the token. It needs nothing but the standard library.
"""

from __future__ import annotations

from leasehold.serve.server import Server, Settings, serving

__all__ = ["Server", "Settings", "serving"]
