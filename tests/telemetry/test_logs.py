"""Structured logs: one event a line, with the fields that the page promises."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer, running
from tests.telemetry.test_prometheus import ABOUT, ONE_OF_EACH

import leasehold
from leasehold import Leasehold
from leasehold.events import EVENTS, Event, Failed, Granted, fields
from leasehold.telemetry.logs import LEVELS, JsonFormatter, LogWatcher, json_logs

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_event_is_one_line_with_its_fields(locks: Leasehold) -> None:
    stream = io.StringIO()
    with json_logs(stream):
        with locks.lock("export/7") as lease:
            pass
        locks.force_release("export/7", because="a test")
    granted, released, broken = lines_of(stream)
    assert granted["event"] == "granted"
    assert granted["level"] == "info"
    assert (granted["name"], granted["token"], granted["mode"]) == ("export/7", lease.token, "exclusive")
    assert released["event"] == "released"
    assert float(str(released["held"])) >= float(str(granted["waited"]))
    assert (broken["event"], broken["level"], broken["because"]) == ("broken", "warning", "a test")
    assert str(broken["message"]).startswith("force release of 'export/7'")
    assert list(granted)[:4] == ["time", "level", "logger", "event"]


def test_all_events_have_a_level_and_flat_fields() -> None:
    assert set(LEVELS) == set(EVENTS)
    for event in ONE_OF_EACH:
        assert all(value is None or isinstance(value, str | int | float) for value in fields(event).values())
        json.dumps(fields(event), allow_nan=False)


def test_the_page_names_every_event_and_every_field() -> None:
    page = PAGE.read_text()
    for event in ONE_OF_EACH:
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{fields(event)['event']}` |")]
        for field in set(fields(event)) - {"event", "engine", "address", "name", "mode"}:
            assert f"`{field}`" in row, (fields(event)["event"], field)


def test_an_engine_that_is_away_is_no_flood(caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand leases fail together, again and again; one line of another kind is told among them."""
    now = 5.0
    watcher = LogWatcher(clock=lambda: now)
    for _ in range(3):
        for number in range(10_000):
            watcher(Failed(ABOUT._replace(name=f"n-{number}"), "renew", "EngineUnavailable", 0.0))
        watcher(Failed(ABOUT, "acquire", "EngineUnavailable", 0.0))
        now += 1.5
    renewals = [one for one in caplog.records if "doing='renew'" in one.getMessage()]
    assert len(renewals) == 30
    assert len(caplog.records) == 33
    left_out = [getattr(one, "leasehold").get("left_out") for one in renewals]  # noqa: B009 -- a field of our own
    assert left_out == [None] * 10 + [9_990] + [None] * 9 + [9_990] + [None] * 9


def test_a_hostile_name_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    hostile = ABOUT._replace(name='x"\n{"event": "lost"}\x1b[2J')
    LogWatcher()(Granted(hostile, 7, 0.2, True, 30.0))
    [record] = caplog.records
    assert record.getMessage().isprintable()
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["event"] == "granted"


def test_an_exception_is_on_the_same_line() -> None:
    stream = io.StringIO()

    def fails(_event: Event) -> None:
        raise ValueError("planted")

    with json_logs(stream), leasehold.watch(fails):
        leasehold.watching.note(ONE_OF_EACH[0])
    [_event, line] = lines_of(stream)
    assert line["event"] == "message"
    assert "ValueError: planted" in str(line["error"])


def test_what_is_switched_off_is_not_even_made(locks: Leasehold) -> None:
    stream = io.StringIO()
    with json_logs(stream, level=logging.WARNING), locks.lock("x"):
        pass
    assert stream.getvalue() == ""


def test_the_logger_is_put_back() -> None:
    logger = logging.getLogger("leasehold")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with json_logs(io.StringIO()):
        assert not logger.propagate
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_no_password_gets_into_a_log(tmp_path: Path) -> None:
    stream = io.StringIO()
    with running(RedisServer("redis", tmp_path, "--requirepass", "canary-31337")) as server, json_logs(stream):
        with Leasehold(f"redis://:canary-31337@127.0.0.1:{server.port}/0") as locks, locks.lock("export/1"):
            pass
        locks = Leasehold(f"redis://:canary-wrong@127.0.0.1:{server.port}/0")
        with locks, pytest.raises(leasehold.EngineError), locks.lock("export/1", wait=0.1):
            pass
    assert [line["event"] for line in lines_of(stream)] == ["granted", "released", "failed"]
    assert "canary" not in stream.getvalue()
