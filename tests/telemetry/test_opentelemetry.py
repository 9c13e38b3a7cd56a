"""Traces and metrics, read back from the SDK that an application would use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.telemetry.conftest import wait_for
from tests.telemetry.test_prometheus import ONE_OF_EACH

import leasehold
from leasehold import Leasehold, LeaseLost, NotAcquired, StaleToken
from leasehold.fences import FileFence
from leasehold.telemetry.figures import METRICS
from leasehold.telemetry.opentelemetry import OpenTelemetryWatcher


class Telemetry:
    """The SDK, writing to memory."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.watcher = OpenTelemetryWatcher(tracer_provider=self.tracers, meter_provider=self.meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    with leasehold.watch(telemetry.watcher):
        yield telemetry
    telemetry.close()


def test_a_wait_and_a_hold_are_spans_under_the_callers_own(telemetry: Telemetry, locks: Leasehold) -> None:
    tracer = telemetry.tracers.get_tracer("application")
    with tracer.start_as_current_span("request") as request, locks.lock("export/7") as lease:
        pass
    wait, hold, _request = telemetry.spans
    assert (wait.name, hold.name) == ("leasehold.wait", "leasehold.hold")
    assert wait.parent is not None
    assert hold.parent is not None
    assert wait.parent.span_id == hold.parent.span_id == request.get_span_context().span_id
    assert hold.links[0].context.span_id == wait.context.span_id
    for span in (wait, hold):
        assert span.attributes is not None
        assert (span.attributes["leasehold.name"], span.attributes["leasehold.token"]) == ("export/7", lease.token)
        assert span.status.status_code is not StatusCode.ERROR
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


def test_a_wait_in_vain_is_an_error_and_has_its_length(telemetry: Telemetry, locks: Leasehold) -> None:
    with locks.lock("x"), pytest.raises(NotAcquired), locks.lock("x", wait=0.2):
        pass
    [wait] = [span for span in telemetry.spans if span.status.status_code is StatusCode.ERROR]
    assert wait.name == "leasehold.wait"
    assert (wait.end_time or 0) - (wait.start_time or 0) >= 0.2e9


def test_a_loss_is_an_event_and_an_error(telemetry: Telemetry, locks: Leasehold) -> None:
    lease = locks.lock("x", ttl=1.5).acquire()
    locks.force_release("x", because="a test")
    wait_for(lambda: lease.lost, "the loss is known")
    with pytest.raises(LeaseLost):
        lease.release()
    wait_for(lambda: [span for span in telemetry.spans if span.name == "leasehold.hold"], "the span has ended")
    [hold] = [span for span in telemetry.spans if span.name == "leasehold.hold"]
    assert hold.status.status_code is StatusCode.ERROR
    [lost] = hold.events
    assert lost.name == "lost"


def test_a_refused_write_is_an_event_of_the_callers_span(telemetry: Telemetry, tmp_path: Any) -> None:
    fence = FileFence(tmp_path)
    fence.write("report.txt", 35, b"new")
    with telemetry.tracers.get_tracer("application").start_as_current_span("request"), pytest.raises(StaleToken):
        fence.write("report.txt", 34, b"old")
    [request] = telemetry.spans
    [refused] = request.events
    assert refused.name == "leasehold.refused"
    assert refused.attributes is not None
    assert refused.attributes["leasehold.seen"] == 35


def test_every_metric_is_there_with_its_labels(telemetry: Telemetry, locks: Leasehold) -> None:
    for event in ONE_OF_EACH:
        telemetry.watcher(event)
    with locks.lock("export/7"):
        points = telemetry.points
    for metric in METRICS:
        name = metric.name.replace("_", ".", 1).removesuffix("_seconds")
        assert name in points
        assert all(set(point.attributes) == set(metric.labels) for point in points[name])
    waits = [point for point in points["leasehold.wait"] if point.attributes["outcome"] == "gave_up"]
    assert [point.sum for point in waits] == [5.0]
    held = {point.attributes["engine"]: point.value for point in points["leasehold.held"]}
    assert held["sqlite"] == 1


def test_nothing_is_kept_of_leases_that_are_over(telemetry: Telemetry, locks: Leasehold) -> None:
    for number in range(50):
        with locks.lock(f"order/{number}"):
            pass
    assert telemetry.watcher._holds == {}
