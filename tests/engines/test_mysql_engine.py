"""What only MySQL and MariaDB do: names as bytes, and wake-ups by interrupting a wait in the server."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import pytest
from tests.engines.driving import eventually
from tests.engines.mysql_help import MOVABLE_CLOCK, MovableClock, calling, opened
from tests.engines.sql_help import soon, want
from tests.support.mariadb_server import MariadbServer

from leasehold.core.engine import Busy, Grant, Renewal, Want
from leasehold.core.worlds import run_blocking
from leasehold.engines.mysql import MysqlEngine, _granted
from leasehold.wires import mysql_ear
from leasehold.wires.mysql_ear import GATE, MOST_LETTERS
from leasehold.wires.mysql_packets import Answers, EachAnswer, Inbox, Nonsense, framed
from leasehold.wires.mysql_tables import SCHEMA_VERSION
from leasehold.wires.sql_table import Request, Statement

WORLDS = ("blocking", "asyncio")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_names_that_a_collation_would_take_for_one_are_many(mariadb_server: MariadbServer) -> None:
    names = ["a", "A", "a ", " a", "á", "ß", "ss", "%", "_", "a'--", "x" * 255, "😀" * 63]
    with opened(mariadb_server.url) as engine:
        tokens = [run_blocking(engine.take(want(name, "h"), until=soon(engine))) for name in names]
        assert all(isinstance(one, Grant) for one in tokens)
        listed = run_blocking(engine.names(after=None, limit=99, until=soon(engine)))
        assert listed == sorted(names, key=str.encode)
        for name in names:
            assert run_blocking(engine.release(name, "h", until=soon(engine)))


def test_who_asks_again_in_the_same_instant_has_what_it_had(mariadb_server: MariadbServer) -> None:
    clock = MovableClock(mariadb_server)
    with opened(mariadb_server.url, clock=MOVABLE_CLOCK) as engine:
        first = run_blocking(engine.take(want("a", "h", 30.0), until=soon(engine)))
        assert isinstance(first, Grant)
        assert run_blocking(engine.take(want("a", "h", 5.0), until=soon(engine))) == first
        status = run_blocking(engine.status("a", until=soon(engine)))
        assert status is not None
        assert [(one.token, one.expires_in) for one in status.holders] == [(first.token, 30.0)]
    clock.close()


def test_a_lease_that_has_run_out_is_judged_only_by_who_has_locked_its_row(mariadb_server: MariadbServer) -> None:
    """A statement's clock stands still while it waits for a row, and may be set back meanwhile."""
    clock = MovableClock(mariadb_server)
    with contextlib.closing(clock), opened(mariadb_server.url, clock=MOVABLE_CLOCK) as engine:
        first = run_blocking(engine.take(want("a", "h1", 1.0), until=soon(engine)))
        clock.move(2_000_000)
        assert isinstance(first, Grant)
        for known in (set(), {"a"}):
            engine._known = known
            assert run_blocking(engine._take_free(want("a", "h2"), soon(engine))) == 0
        second = run_blocking(engine.take(want("a", "h2", 1.0), until=soon(engine)))
        assert isinstance(second, Grant)
        assert second.token > first.token
        assert isinstance(run_blocking(engine.take(want("a", "h3"), until=soon(engine), patience=100.0)), Busy)
        clock.move(2_000_000)
        assert run_blocking(engine._take_turn(want("a", "h3"), soon(engine))) == 0
        third = run_blocking(engine.take(want("a", "h3"), until=soon(engine), patience=100.0))
        assert isinstance(third, Grant)
        assert third.token > second.token


def test_every_kind_of_lease_is_renewed_in_a_batch(mariadb_server: MariadbServer, world: str) -> None:
    with calling(mariadb_server.url, world) as (engine, run):
        wants = [want("alone", "h1"), Want("shared", "h2", 5.0, "shared"), Want("shared", "h3", 5.0, "shared")]
        tokens = [run(engine.take(one, until=soon(engine))).token for one in wants]
        asked = [Renewal(one.name, one.holder, token, 9.0) for one, token in zip(wants, tokens, strict=True)]
        asked.insert(1, Renewal("nobody's", "h4", 1, 9.0))
        asked.append(Renewal("shared", "h2", tokens[1] + 5, 9.0))
        assert run(engine.renew(asked, until=soon(engine))) == [True, False, True, True, False]
        status = run(engine.status("shared", until=soon(engine)))
        assert all(one.expires_in > 8 for one in status.holders)


def woken_after(engine: MysqlEngine, name: str, holder: str) -> float:
    """How long a queued waiter dozes until it is woken."""
    since = time.monotonic()
    run_blocking(engine.wait(want(name, holder), soon(engine)))
    return time.monotonic() - since


def test_a_name_is_taken_while_the_tables_are_still_being_made(mariadb_server: MariadbServer) -> None:
    """To make tables is no transaction here: for a moment there is a table for the base of all tokens, and no base."""
    with opened(mariadb_server.url) as engine:
        first = run_blocking(engine.take(Want("a", "h1", 5.0, "shared"), until=soon(engine)))
        mariadb_server.sql("DELETE FROM leasehold.leasehold_meta")
        try:
            second = run_blocking(engine.take(Want("b", "h2", 5.0, "shared"), until=soon(engine)))
        finally:
            mariadb_server.sql(f"INSERT INTO leasehold.leasehold_meta VALUES (1, {SCHEMA_VERSION}, 0)")
        assert isinstance(first, Grant)
        assert isinstance(second, Grant)
        assert second.token > first.token


def test_a_wake_up_that_finds_the_listener_awake_is_not_lost(mariadb_server: MariadbServer) -> None:
    """The interruption hits nothing there; the next wait must see the letter, and not be waited."""
    with (
        opened(mariadb_server.url, namespace="awake") as engine,
        opened(mariadb_server.url, namespace="awake") as other,
    ):
        for number in range(MOST_LETTERS + 4):  # so that some are taken away meanwhile
            name = f"n{number}"
            assert isinstance(run_blocking(engine.take(want(name, "h1"), until=soon(engine))), Grant)
            assert isinstance(
                run_blocking(other.take(want(name, f"w{number}"), until=soon(other), patience=30.0)), Busy
            )
            if number % 4 == 0:
                time.sleep(1.1)  # nobody reads, so the listener's wait has ended, and it was not told to wait again
            assert run_blocking(engine.release(name, "h1", until=soon(engine)))
            assert woken_after(other, name, f"w{number}") < 0.9
            assert isinstance(run_blocking(other.take(want(name, f"w{number}"), until=soon(other))), Grant)
        ear = other._wire._listener._ear  # type: ignore[attr-defined]
        of_it = "SELECT COUNT(*) FROM leasehold.leasehold_wake WHERE address = %s"
        assert mariadb_server.sql(of_it, ear.channel)[0][0] < MOST_LETTERS


def test_a_wait_is_not_begun_over_a_letter(mariadb_server: MariadbServer) -> None:
    """A letter that came between looking and waiting, whose interruption hit nothing, must end the wait."""
    with opened(mariadb_server.url) as engine, contextlib.closing(mariadb_server.superuser()) as keeper:
        run_blocking(engine.status("a", until=soon(engine)))
        keeper.query(f"DO GET_LOCK('{GATE}', 5)")
        mariadb_server.sql("INSERT INTO leasehold.leasehold_wake VALUES ('lh:here', 'l1', 'h', 9000000000000000)")

        def waited(letters_known: int) -> float:
            since = time.monotonic()
            asked = Request(mysql_ear._WAIT, ("lh:here", letters_known, GATE, 1))
            assert run_blocking(engine._ask_all([asked], soon(engine))) == [[(0,)]]
            return time.monotonic() - since

        assert waited(1) >= 0.9
        assert waited(0) < 0.9
        mariadb_server.sql("DELETE FROM leasehold.leasehold_wake WHERE address = 'lh:here'")


def test_a_waiter_whose_listener_is_gone_is_passed_over(mariadb_server: MariadbServer) -> None:
    with opened(mariadb_server.url, namespace="gone") as engine:
        with opened(mariadb_server.url, namespace="gone") as dead:
            assert isinstance(run_blocking(engine.take(want("a", "h1"), until=soon(engine))), Grant)
            assert isinstance(run_blocking(dead.take(want("a", "h2"), until=soon(dead), patience=30.0)), Busy)
            assert isinstance(run_blocking(engine.take(want("a", "h3"), until=soon(engine), patience=30.0)), Busy)
        eventually(lambda: len(mariadb_server.connections()) == 2)
        assert run_blocking(engine.release("a", "h1", until=soon(engine)))
        assert woken_after(engine, "a", "h3") < 0.9
        assert isinstance(run_blocking(engine.take(want("a", "h3"), until=soon(engine), patience=30.0)), Grant)


def test_another_user_may_not_interrupt_and_is_heard_all_the_same(
    mariadb_server: MariadbServer, caplog: pytest.LogCaptureFixture
) -> None:
    mariadb_server.add_user("neighbour")
    mariadb_server.sql("GRANT ALL ON leasehold.* TO neighbour")
    url = mariadb_server.url.replace("leasehold:", "neighbour:")
    with opened(mariadb_server.url, namespace="users") as engine, opened(url, namespace="users") as neighbour:
        assert isinstance(run_blocking(neighbour.take(want("a", "h1"), until=soon(engine))), Grant)
        assert isinstance(run_blocking(engine.take(want("a", "h2"), until=soon(engine), patience=30.0)), Busy)
        with caplog.at_level(logging.WARNING, "leasehold"):
            assert run_blocking(neighbour.release("a", "h1", until=soon(engine)))
        assert "could not be nudged" in caplog.text
        assert woken_after(engine, "a", "h2") < 3.0
        assert isinstance(run_blocking(engine.take(want("a", "h2"), until=soon(engine), patience=30.0)), Grant)


def test_letters_that_nobody_comes_for_are_swept(mariadb_server: MariadbServer) -> None:
    with opened(mariadb_server.url) as engine:
        run_blocking(engine.status("a", until=soon(engine)))
        mariadb_server.sql("INSERT INTO leasehold.leasehold_wake VALUES ('lh:old', 'l1', 'h', 1)")
        run_blocking(engine._sweep(soon(engine)))
        assert mariadb_server.sql("SELECT COUNT(*) FROM leasehold.leasehold_wake WHERE address = 'lh:old'") == [(0,)]


def test_many_who_add_the_same_name_at_once_agree(mariadb_server: MariadbServer) -> None:
    """None of them is undone by another, and one of them has it."""
    with opened(mariadb_server.url) as engine:
        outcomes: list[object] = []

        def take(number: int) -> None:
            for name in range(20):
                wanted = Want(f"race-{name}", f"h{number}", 30.0, "permit", 3)
                outcomes.append(run_blocking(engine.take(wanted, until=soon(engine, 20.0))))

        threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 120
        assert sum(isinstance(one, Grant) for one in outcomes) == 60


def test_an_error_in_the_middle_carries_out_nothing_behind_it(mariadb_server: MariadbServer) -> None:
    with opened(mariadb_server.url) as engine:
        run_blocking(engine.status("a", until=soon(engine)))
        add = Request(Statement("INSERT INTO leasehold_wake VALUES ('lh:never', 'l', 'h', 9000000000000000)", "add"))
        wrong = Request(Statement("SELECT nothing", "wrong"))
        with pytest.raises(Exception, match="answered with an error"):
            run_blocking(engine._ask_all([engine.begin, add, wrong, engine.commit], soon(engine), commits=True))
        eventually(
            lambda: mariadb_server.sql("SELECT * FROM leasehold.leasehold_wake WHERE address = 'lh:never'") == []
        )


@pytest.mark.parametrize(
    "packets",
    [
        [b"\xfb/etc/passwd"],
        [b""],
        [b"\0"],
        [b"\x01", b"short", b"\xfe\0\0\x02\0"],
        [b"\xfe\xff"],
        [b"\x01", b"\x03def\0\0\0\x01a\0\x0c\x3f\0\x0b\0\0\0\x08\0\0\0\0\0", b"\xfe\0\0\x02\0", b"\x02xy"],
        [b"\x01", b"\x03def\0\0\0\x01a\0\x0c\x3f\0\x0b\0\0\0\x08\0\0\0\0\0", b"\xfe\0\0\x02\0", b"\x011\x011"],
    ],
)
def test_answers_that_make_no_sense_are_refused(packets: list[bytes]) -> None:
    """A server may ask for a file in the midst of an answer; nothing but answers is understood."""
    answers = Answers()
    with pytest.raises(Nonsense):
        answers.feed(packets)


COLUMN, END = b"\x03def\0\0\0\x01a\0\x0c\x3f\0\x0b\0\0\0\x08\0\0\0\0\0", b"\xfe\0\0\x02\0"
TEXT_COLUMN = COLUMN.replace(b"\x0b\0\0\0\x08", b"\x0b\0\0\0\xfd")
SEVEN = (7).to_bytes(8, "little")


def test_rows_of_what_is_prepared_are_read() -> None:
    answers = EachAnswer([True, True, False])
    rows = [b"\0\0" + SEVEN + b"\x03abc", b"\0\x04" + b"\0", b"\0\0" + b"\xff" * 8 + b"\0"]
    answers.feed([b"\x02", COLUMN, TEXT_COLUMN, END, *rows, END])
    answers.feed([b"\xff\x25\x05words", b"\x01", COLUMN, END, b"\x017", END])
    assert answers.is_complete
    assert answers.results == [[(7, "abc"), (None, ""), (-1, "")], [], [(7,)]]
    assert answers.error is not None
    assert (answers.error.code, answers.succeeded) == (1317, 1)


@pytest.mark.parametrize(
    "packets",
    [
        [b"\x01", COLUMN, END, b"\0\0" + SEVEN[:7]],
        [b"\x01", COLUMN, END, b"\0\0" + SEVEN + b"\0"],
        [b"\x01", COLUMN, END, b"\0"],
        [b"\x01", TEXT_COLUMN, END, b"\0\0\x05abc"],
        [b"\x01", TEXT_COLUMN, END, b"\0\0\x01\xff"],
        [b"\x01", COLUMN, END, b"\xfe\0\0\x0a\0"],
        [b"\0\0\0\x0a\0\0\0"],
    ],
)
def test_rows_of_what_is_prepared_that_make_no_sense_are_refused(packets: list[bytes]) -> None:
    with pytest.raises(Nonsense):
        EachAnswer([True]).feed(packets)


def test_a_packet_out_of_order_is_refused() -> None:
    inbox = Inbox()
    inbox.expect(1)
    inbox.add(framed(b"\0\0\0\x02\0\0\0", 1)[:5])
    assert inbox.packet() is None
    inbox.add(framed(b"\0\0\0\x02\0\0\0", 1)[5:])
    assert inbox.packet() == b"\0\0\0\x02\0\0\0"
    inbox.add(framed(b"again", 1))
    with pytest.raises(Nonsense):
        inbox.packet()
    inbox = Inbox()
    inbox.expect(1, several=True)
    inbox.add(framed(b"one", 1) + framed(b"more", 2) + framed(b"another", 1) + framed(b"out of order", 3))
    assert [inbox.packet() for _ in range(3)] == [b"one", b"more", b"another"]
    with pytest.raises(Nonsense):
        inbox.packet()


def test_a_grant_changes_one_row_and_has_a_token() -> None:
    """A token was perhaps thought of for a name that another one has: a count that was read wrong must not grant it."""
    assert [_granted([answer]) for answer in ((0, 0), (0, 17), (1, 17), (2, 17))] == [0, 0, 17, 17]
    for nonsense in ((183, 17), (3, 17), (1, 0), (2, 0)):
        with pytest.raises(ValueError, match="taken once"):
            _granted([nonsense])
