"""A writer that is killed at its n-th touch of the disk: ``python -m tests.fences.file_crash FOLDER DEED TOKEN N``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold.fences import FileFence


def dying(call: Callable[..., Any], before: bool) -> Callable[..., Any]:
    """The same call, which kills the process right before or right after it when it is its turn."""

    def touched(*arguments: Any, **more: Any) -> Any:
        global left
        left -= 1
        if left == 0 and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*arguments, **more)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return touched


if __name__ == "__main__":
    folder, deed, token = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    left, late = divmod(int(sys.argv[4]), 2)
    fence = FileFence(folder)
    for owner, name in ((os, "fsync"), (os, "fchmod"), (Path, "replace"), (Path, "unlink")):
        setattr(owner, name, dying(getattr(owner, name), not late))
    if deed == "write":
        fence.write("thing", token, f"by {token}".encode(), once=True)
    else:
        fence.delete("thing", token, once=True)
    print("survived")
