"""Texts that no database takes as they are, such as a file's name that is no UTF-8, are kept all the same."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.conftest import PATIENT
from tests.patterns.test_partitions_inbox import COUNT, KINDS, ORDERS, Place, connection_to, place_of
from tests.support.mariadb_server import MariadbServer

from leasehold import FailedBefore, KeyReused, Leasehold, Misuse
from leasehold.patterns.idempotency import Idempotency, Run, Store, fingerprint_of
from leasehold.patterns.jobs import JobRun, Jobs
from leasehold.patterns.partitions import Message, Partitions, SqlInbox, Writer

FILE = "caf\udce9.txt"
"""As `os.listdir` names a file whose name is in latin-1."""
ODD = [FILE, "nothing\0else", "客户 😀"]


@pytest.fixture(autouse=True)
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    """What is logged of such errors has their texts, and a report of this test may be sent as UTF-8."""
    caplog.set_level(logging.CRITICAL + 1, logger="leasehold")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


# Idempotency keys


@pytest.mark.parametrize("text", ODD, ids=["surrogate", "nul", "wide"])
def test_a_result_with_any_text_is_given_again(store: Store, text: str) -> None:
    keys, runs = Idempotency(store, scope="payments"), list[int]()

    def convert(run: Run) -> dict[str, str]:
        runs.append(run.token)
        run.reach("begun", {"file": text})
        return {"file": text}

    for _ in range(2):
        assert keys.once("order-1", convert) == {"file": text}
    assert len(runs) == 1


@pytest.mark.parametrize("text", ODD, ids=["surrogate", "nul", "wide"])
def test_a_failure_with_any_text_is_given_again(store: Store, text: str) -> None:
    keys = Idempotency(store, scope="payments", on_error="replay")

    def fails(_run: Run) -> None:
        raise FileNotFoundError(text)

    with pytest.raises(FileNotFoundError):
        keys.once("order-1", fails)
    with pytest.raises(FailedBefore) as failed:
        keys.once("order-1", fails)
    assert failed.value.text == text


def test_payloads_with_any_text_are_compared(store: Store) -> None:
    keys = Idempotency(store, scope="payments")
    for _ in range(2):
        assert keys.once("order-1", lambda _run: 1, payload={"file": FILE}) == 1
    with pytest.raises(KeyReused):
        keys.once("order-1", lambda _run: 1, payload={"file": "caf?.txt"})
    assert len({fingerprint_of(text) for text in (FILE, "caf\udce8.txt", "café.txt", "caf\\udce9.txt")}) == 4


def test_the_size_of_a_result_is_that_of_what_is_stored(store: Store) -> None:
    keys = Idempotency(store, scope="payments", largest_result=100)
    assert keys.once("order-1", lambda _run: "客" * 16) == "客" * 16
    with pytest.raises(Misuse, match="has 104 bytes and at most 100 are kept"):
        keys.once("order-2", lambda _run: "客" * 17)


# Jobs


@pytest.mark.parametrize("text", ODD, ids=["surrogate", "nul", "wide"])
def test_a_job_that_fails_with_any_text_is_in_its_book(store: Any, text: str) -> None:
    jobs = Jobs(store)

    @jobs.once_per("1d", name="nightly", backoff=3600)
    def nightly(_run: JobRun) -> None:
        raise FileNotFoundError(text)

    with pytest.raises(FileNotFoundError):
        nightly()
    assert nightly().state == "waiting"
    [status] = jobs.status()
    assert [run.error for run in status.runs] == [f"FileNotFoundError: {text}"]


# Inboxes


@pytest.mark.parametrize(
    ("text", "kept"),
    [(FILE, "caf\\udce9.txt"), ("nothing\0else", "nothing\\x00else"), ("客户 😀", "客户 😀")],
    ids=["surrogate", "nul", "wide"],
)
def test_a_handler_may_fail_with_any_text(place: Place, tmp_path: Path, text: str, kept: str) -> None:
    inbox, until = place.make(most_tries=2), threading.Event()
    inbox.put("a", {"name": text})
    inbox.put("a", "last")

    def handle(_writer: Writer, message: Message) -> None:
        if message.payload == "last":
            until.set()
            return
        assert message.payload == {"name": text}
        raise FileNotFoundError(text)

    with Leasehold(tmp_path / "leases.db") as locks, Partitions(locks, ORDERS, every=0.1) as only:
        only.wait_owned(COUNT, within=PATIENT)
        only.serve(inbox, handle, until=until)
    [parked] = inbox.parked()
    assert parked.payload == {"name": text}
    assert parked.error == f"FileNotFoundError: {kept}"


@pytest.mark.parametrize("charset", ["latin1", "utf8"])
def test_a_connection_that_cannot_take_the_text_gets_it_in_ascii(mariadb_server: MariadbServer, charset: str) -> None:
    inbox = SqlInbox(ORDERS, lambda: connection_to(mariadb_server, charset=charset), table=f"odd_{charset}")
    inbox.create()
    inbox.put("a", 1)
    [partition] = inbox.waiting()
    for _ in range(5):
        [message] = inbox.take(partition, 7)
        inbox.fail(message, 7, "no such customer: 客😀")
    assert [one.error for one in inbox.parked()] == ["no such customer: \\u5ba2\\U0001f600"]
    inbox.close()


@pytest.mark.parametrize("entity", [FILE, "a\0b"], ids=["surrogate", "nul"])
def test_an_entity_that_no_inbox_can_name_is_refused(place: Place, entity: str) -> None:
    inbox = place.make()
    for key in (None, "order-1"):
        with pytest.raises(Misuse, match="entity"):
            inbox.put(entity, 1, key=key)
    with pytest.raises(Misuse, match="entity"):
        inbox.put(7, 1)  # type: ignore[arg-type]
    assert inbox.waiting() == []
