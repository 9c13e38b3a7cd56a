"""One member of the show, in a process of its own. Ends at SIGTERM, after it has drained."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from leasehold.client import Leasehold
from leasehold.errors import StaleToken
from leasehold.patterns.partitions.blocking import Partitions
from leasehold.patterns.partitions.entities import Entities
from leasehold.patterns.partitions.inbox import Message
from leasehold.patterns.partitions.owned import Writer
from leasehold.patterns.partitions.show.stage import GROUP, Stage


def main(arguments: list[str]) -> None:
    """Serve until told to stop. `work` is how long each message takes, in seconds, on average."""
    on, folder, label, partitions, ttl, work = arguments
    until, local, me = threading.Event(), threading.local(), os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: until.set())
    first = Stage(Path(folder))
    inbox = first.inbox(int(partitions))

    def handle(writer: Writer, message: Message) -> None:
        stage: Stage = local.__dict__.setdefault("stage", None) or Stage(Path(folder))
        local.stage = stage
        try:
            stage.begin(writer, message.payload, me)
            time.sleep(random.random() * 2 * float(work))
            stage.end(writer, message, me, inbox)
        except StaleToken as refusal:
            stage.refused(refusal, writer, message.payload, me)
            raise

    engine: str | Path = on if "://" in on else Path(on)
    with Leasehold(engine, label=label) as locks:
        entities = Entities(GROUP, int(partitions))
        with Partitions(locks, entities, ttl=float(ttl), every=min(float(ttl) / 10, 1.0)) as member:
            member.serve(inbox, handle, until=until)


if __name__ == "__main__":
    main(sys.argv[1:])
