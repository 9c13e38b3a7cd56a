"""The same seed is the same history, byte for byte, in any process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from leasehold.sim.simulation import Simulation

SEEDS = range(25)
PRINT_DIGEST = f"""
import hashlib
from leasehold.sim.simulation import Simulation
text = "\\n".join(Simulation(seed).run().text() for seed in range({len(SEEDS)}))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def digest() -> str:
    return hashlib.sha256("\n".join(Simulation(seed).run().text() for seed in SEEDS).encode()).hexdigest()


def digest_elsewhere(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ended = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_twice_in_one_process() -> None:
    assert digest() == digest()


def test_in_processes_that_hash_differently() -> None:
    assert digest_elsewhere("1") == digest_elsewhere("2") == digest()


def test_seeds_differ() -> None:
    texts = {Simulation(seed).run().text() for seed in SEEDS}
    assert len(texts) == len(SEEDS)
