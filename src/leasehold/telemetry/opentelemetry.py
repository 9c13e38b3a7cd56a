"""Traces and metrics for OpenTelemetry: ``pip install 'leasehold[otel]'``. Only its API is used.

A wait and a hold are spans of their own, beside what the caller does meanwhile: a lease may be released by another
thread than the one that took it, so the hold is not made the current span. The hold is linked to its wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from leasehold import __version__
from leasehold.client import Population, population
from leasehold.errors import NotSupported
from leasehold.events import About, Event, Failed, GaveUp, Granted, Lost, Refused, Released, Renewed, fields, name_of
from leasehold.telemetry.figures import BUCKETS, HELD_NOW, METRICS, WAITING_NOW, Metric, figures
from leasehold.telemetry.groups import Groups

try:
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise NotSupported(f"this needs the package {missing.name}: pip install 'leasehold[otel]'") from None

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

WAIT_SPAN: Final = "leasehold.wait"
HOLD_SPAN: Final = "leasehold.hold"


class OpenTelemetryWatcher:
    """Makes spans and metrics of what happens in this process, for ``leasehold.watch``.

    Metrics are labelled with groups of names (see `Groups`), spans have the whole name and the token.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        group: Callable[[str], str] | None = None,
    ) -> None:
        """Use the providers that are set up for the process, unless others are given."""
        self._group = Groups() if group is None else group if isinstance(group, Groups) else Groups(group)
        self._tracer = trace.get_tracer("leasehold", __version__, tracer_provider)
        self._holds: dict[tuple[About, int], Span] = {}
        meter = metrics.get_meter("leasehold", __version__, meter_provider)
        self._counters = {
            metric: meter.create_counter(_name(metric.name), description=metric.help)
            for metric in METRICS
            if metric.kind == "counter"
        }
        self._histograms = {
            metric: meter.create_histogram(
                _name(metric.name), unit="s", description=metric.help, explicit_bucket_boundaries_advisory=BUCKETS
            )
            for metric in METRICS
            if metric.kind == "histogram"
        }
        for (name, text), of in ((HELD_NOW, _held), (WAITING_NOW, _waiting)):
            meter.create_observable_gauge(_name(name), callbacks=[of], description=text)

    def __call__(self, event: Event) -> None:
        """Count an event, and make a span of it where it begins or ends one."""
        for metric, labels, value in figures(event, self._group):
            self._count(metric, dict(zip(metric.labels, labels, strict=True)), value)
        match event:
            case Granted():
                self._began(event, self._waited(event))
            case GaveUp() | Failed(doing="acquire"):
                self._waited(event)
            case Failed():
                self._renewal_failed(event)
            case Released() | Lost():
                self._ended(event)
            case Renewed():
                return
            case _:
                self._beside(event)

    def _count(self, metric: Metric, labels: dict[str, str], value: float) -> None:
        if metric.kind == "counter":
            self._counters[metric].add(value, labels)
        else:
            self._histograms[metric].record(value, labels)

    def _waited(self, event: Granted | GaveUp | Failed) -> Span:
        """A span for a wait that has just ended."""
        now = time.time_ns()
        span = self._tracer.start_span(
            WAIT_SPAN, kind=SpanKind.CLIENT, attributes=_attributes(event), start_time=now - int(event.waited * 1e9)
        )
        if not isinstance(event, Granted):
            span.set_status(Status(StatusCode.ERROR, name_of(event)))
        span.end(now)
        return span

    def _began(self, event: Granted, wait: Span) -> None:
        self._holds[event.about, event.token] = self._tracer.start_span(
            HOLD_SPAN, attributes=_attributes(event), links=[Link(wait.get_span_context())]
        )

    def _renewal_failed(self, event: Failed) -> None:
        for (about, _token), span in list(self._holds.items()):
            if about == event.about:
                span.add_event("renewal failed", {"error": event.error})

    def _ended(self, event: Released | Lost) -> None:
        span = self._holds.pop((event.about, event.token), None)
        if span is None:  # granted before anybody watched
            return
        if isinstance(event, Lost):
            span.add_event("lost", {"reason": event.reason})
            span.set_status(Status(StatusCode.ERROR, "the lease was lost"))
        span.end()

    @staticmethod
    def _beside(event: Event) -> None:
        """What happens within a span of the caller's is an event of that span."""
        span = trace.get_current_span()
        span.add_event(f"leasehold.{name_of(event)}", _attributes(event))
        if isinstance(event, Refused):
            span.set_attribute("leasehold.refused", event.reason)


def _attributes(event: Event) -> dict[str, AttributeValue]:
    return {f"leasehold.{key}": value for key, value in fields(event).items() if value is not None and key != "event"}


def _name(name: str) -> str:
    """In the words of OpenTelemetry; its exporter for Prometheus makes our usual names of them again."""
    return name.replace("_", ".", 1).removesuffix("_seconds")


def _held(_options: CallbackOptions) -> Iterable[Observation]:
    return _observed(lambda now: now.held)


def _waiting(_options: CallbackOptions) -> Iterable[Observation]:
    return _observed(lambda now: now.waiting)


def _observed(of: Callable[[Population], int]) -> list[Observation]:
    return [metrics.Observation(of(now), {"engine": engine}) for engine, now in population().items()]
