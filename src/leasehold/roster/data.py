"""The state of names as data: for scripts, and for whoever asks over HTTP."""

from __future__ import annotations

from typing import Any

from leasehold.core.engine import NameStatus


def as_data(status: NameStatus) -> dict[str, Any]:
    """One name for scripts. Tokens are text, since many readers of JSON cannot keep 63 bits of a number."""
    return {
        "name": status.name,
        "token": str(status.token),
        "closed_for": round(status.closed_for, 3),
        "holders": [
            {
                "holder": holder.about,
                "token": str(holder.token),
                "mode": holder.mode,
                "held_for": round(holder.held_for, 3),
                "expires_in": round(holder.expires_in, 3),
            }
            for holder in status.holders
        ],
        "waiters": [
            {
                "waiter": waiter.about,
                "mode": waiter.mode,
                "waited_for": round(waiter.waited_for, 3),
                "patience_left": round(waiter.patience_left, 3),
            }
            for waiter in status.waiters
        ],
    }
