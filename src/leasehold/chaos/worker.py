"""A worker process of a chaos run: ``python -m leasehold.chaos.worker``, with its settings in the environment."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from leasehold.chaos.hand import Hand, Terms
from leasehold.chaos.history import Recorder
from leasehold.chaos.marks import Marks
from leasehold.chaos.resource import Resource
from leasehold.chaos.subjects import open_subject
from leasehold.chaos.workloads import WORKLOADS
from leasehold.testing.boots import believe_in_boot

OPS_A_LIFE: Final = 10_000_000
"""A worker that was killed is followed by one of the same name, which must not use its numbers again."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker has to know."""

    name: str
    number: int
    life: int
    """How many of this name there were before."""
    folder: str
    began: float
    parent: int
    workers: int
    url: str
    namespace: str
    subject: str
    workload: str
    ttl: float
    wait: float
    permits: int
    seed: int
    power_losses: int = 0
    """How often its host was without power before."""

    def text(self) -> str:
        """For the environment of the process: a command line could be read by others, and the URL is a secret."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Settings:
        """What `text` wrote."""
        return cls(**json.loads(text))


VARIABLE: Final = "LEASEHOLD_CHAOS_WORKER"
RESOURCE_FILE: Final = "resource.db"
MARKS_FILE: Final = "marks"


def events_file(folder: Path, name: str, life: int) -> Path:
    """Where a worker writes its part of the history."""
    return folder / f"events-{name}-{life}.jsonl"


def work(settings: Settings) -> None:
    """Do laps until it is told to stop."""
    folder = Path(settings.folder)
    marks = Marks(folder / MARKS_FILE, settings.workers)
    resource = Resource(folder / RESOURCE_FILE, settings.began)
    record = Recorder(events_file(folder, settings.name, settings.life), settings.name, settings.began)
    workload = WORKLOADS[settings.workload]
    subject = open_subject(settings.subject, settings.url, settings.namespace)
    hand = Hand(
        settings.name,
        settings.number,
        subject=subject,
        resource=resource,
        record=record,
        marks=marks,
        terms=Terms(settings.ttl, settings.wait, settings.permits),
        chance=random.Random(f"worker/{settings.seed}/{settings.name}/{settings.life}"),
        first_op=settings.life * OPS_A_LIFE,
    )
    while not marks.stopping:
        workload.lap(hand)
        hand.laps += 1
        hand.rest()
    subject.close()
    record.close()
    resource.close()


def die_with(parent: int) -> None:
    """End when the run ends, however it ends; on Linux even while this process is frozen."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the run that started this worker is gone")


def main() -> None:
    """Be a worker."""
    settings = Settings.read(os.environ.pop(VARIABLE))
    die_with(settings.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run is told, and ends its workers itself
    # That leases are lost and engines do not answer is what a run is about, and it is in the history.
    logging.getLogger("leasehold").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    believe_in_boot(settings.power_losses)
    work(settings)


if __name__ == "__main__":
    main()
