"""Explore so many histories and leave the tally in a file: `python -m tests.sim.explorer HISTORIES FILE`."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from leasehold.sim.runner import explore

if __name__ == "__main__":
    os.nice(19)
    Path(sys.argv[2]).write_bytes(pickle.dumps(explore(range(int(sys.argv[1])))))
