"""Explore so many histories and leave the tally in a file: `python -m tests.sim.explorer HISTORIES FILE`."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from leasehold.sim.runner import explore

if __name__ == "__main__":
    os.nice(19)
    histories, file = int(sys.argv[1]), Path(sys.argv[2])
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(explore(range(histories))))
    unfinished.rename(file)  # whoever finds it finds all of it
