"""Python runs this at its start: a worker that was told so becomes one with a bug in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if os.environ.get("LEASEHOLD_PLANTED"):
    sys.path.insert(0, str(Path(__file__).parents[3]))
    try:
        from tests.chaos.planted.bugs import plant

        plant(os.environ["LEASEHOLD_PLANTED"])
    except Exception as error:  # Python would go on without it, and the worker be one without a bug
        raise SystemExit(f"the bug could not be planted: {error!r}") from error
