"""One process of the crew: reads its job and then commands from its input, and answers each with one line."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import resource
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold import AsyncLeasehold, Lease, Leasehold
from leasehold.bench.contestant import PATIENCE
from leasehold.bench.contestants import BY_KEY
from leasehold.bench.places import Place
from leasehold.errors import LeaseholdError
from leasehold.worlds import boot_clock

Job = dict[str, Any]
Next = Callable[[], Job]


def main() -> None:
    """Work until the input ends."""
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(commands,), daemon=True).start()
    job: Job = json.loads(commands.get())
    place = Place(**(job["place"] | {"folder": Path(job["place"]["folder"])}))
    try:
        TASKS[job["task"]](place, job, lambda: json.loads(commands.get()))
    except Exception:  # noqa: BLE001 -- whatever it was, the benchmark must be told
        answer(error=traceback.format_exc(limit=-3))
    os._exit(0)  # not through the clean-up of clients whose waiters still wait


def _read_input(commands: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        commands.put(line)
    os._exit(0)  # the benchmark has ended, or was killed: nothing here matters any more


def answer(**content: Any) -> None:
    """Tell the benchmark."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def contend(place: Place, job: Job, following: Next) -> None:
    """Take and release one name as often as it can be had, and note when."""
    use = BY_KEY[job["contestant"]].open(place, job["name"]).again
    answer(ready=True)
    while True:
        command = following()
        body, holds = command["body"], []
        time.sleep(max(command["begins"] - boot_clock(), 0.0))
        ends, worked = command["begins"] + command["seconds"], time.process_time()
        while (asked := boot_clock()) < ends:
            with use():
                acquired = boot_clock()
                if body:
                    time.sleep(body)
                releasing = boot_clock()
            holds.append((asked, acquired, releasing))
        answer(holds=holds, processor=time.process_time() - worked)


def wait(place: Place, job: Job, following: Next) -> None:
    """Let threads wait for a name that somebody else holds; tell what that costs this process."""
    fresh = BY_KEY[job["contestant"]].open(place, job["name"]).fresh

    def queue_up() -> None:
        with fresh():
            return

    for _ in range(job["waiters"]):
        threading.Thread(target=queue_up, daemon=True).start()
    answer(ready=True)
    while following():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        answer(cpu=usage.ru_utime + usage.ru_stime, wakes=usage.ru_nvcsw, threads=threading.active_count())


def hold_leases(place: Place, job: Job, following: Next) -> None:
    """Hold many leases at once; tell what each takes of memory, and whether the keeper keeps up."""
    locks = Leasehold(place.on, namespace=place.namespace)
    # What every client has once is no part of what a lease costs.
    first = [locks.lock(f"first-{number}", ttl=job["ttl"]).acquire() for number in range(10)]
    answer(ready=True)
    following()
    leases: list[Lease] = []
    used, why = _measured_memory(trace=job["trace"]), f"so many within {job['within']:g} s"
    give_up_at = boot_clock() + job["within"]
    try:
        while len(leases) < job["leases"] and boot_clock() < give_up_at:
            leases.append(locks.lock(f"lease-{len(leases)}-{job['trace']}", ttl=job["ttl"]).acquire())
    except LeaseholdError as error:
        if not leases:
            raise
        why = f"then {type(error).__name__}: {error}"
    used = _measured_memory(trace=job["trace"]) - used
    answer(bytes=used / len(leases), leases=len(leases), why=why)
    seconds = following()["seconds"]
    cpu, began = time.process_time(), boot_clock()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (boot_clock() - began)
    keepers = sum(thread.name == "leasehold-keeper" for thread in threading.enumerate())
    answer(lost=sum(lease.lost for lease in leases), share=share, keepers=keepers)
    following()
    give_up_at = boot_clock() + job["within"]
    for lease in first + leases:
        if not lease.lost and boot_clock() < give_up_at:
            lease.release()
    locks.close()
    answer(released=True)


def wait_in_tasks(place: Place, job: Job, following: Next) -> None:
    """Let tasks of one event loop wait for a name that somebody else holds."""
    asyncio.run(_wait_in_tasks(place, job, following))


async def _wait_in_tasks(place: Place, job: Job, following: Next) -> None:
    locks = AsyncLeasehold(
        place.on, namespace=place.namespace, most_waiters=job["waiters"] + 1, request_timeout=job["within"]
    )
    await locks.status(job["name"])
    answer(ready=True)
    await asyncio.to_thread(following)
    lock = locks.lock(job["name"], wait=PATIENCE)
    used = _measured_memory(trace=job["trace"])

    async def queue_up() -> None:
        async with lock:
            return

    tasks = [asyncio.create_task(queue_up()) for _ in range(job["waiters"])]
    answer(started=True)
    while command := await asyncio.to_thread(following):
        if "measure" in command:
            used = _measured_memory(trace=job["trace"]) - used
            failed = [task for task in tasks if task.done()]
            why = str(failed[0].exception() or "it was granted the name") if failed else ""
            answer(bytes=used / len(tasks), failed=len(failed), why=why, sockets=_sockets())
        else:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            answer(cpu=usage.ru_utime + usage.ru_stime, wakes=usage.ru_nvcsw)


def _measured_memory(*, trace: bool) -> int:
    """Bytes in use: those of Python's objects when traced, else the whole resident size."""
    gc.collect()
    if trace:
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        return tracemalloc.get_traced_memory()[0]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _sockets() -> int:
    """How many sockets are open here, without those that a loop wakes itself with."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:  # the handle of this very listing
            continue
    return count


TASKS: dict[str, Callable[[Place, Job, Next], None]] = {
    "contend": contend,
    "wait": wait,
    "hold_leases": hold_leases,
    "wait_in_tasks": wait_in_tasks,
}

if __name__ == "__main__":
    main()
