"""Spans for an OpenTelemetry collector, over OTLP; needs the extra `otel`."""

import contextlib
import logging
import queue
import threading
import time

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pypto_serving.process.exported_span import ExportedSpan
from pypto_serving.process.version import version
from pypto_serving.wire.traceparent import TRACEPARENT

_log = logging.getLogger(__name__)

_MAX_WAITING, _MAX_BATCH = 4096, 512
_BATCH_SECONDS, _EXPORT_SECONDS, _CLOSE_SECONDS = 1.0, 5.0, 2.0


class _EndedSpans(SpanProcessor):
    """Those that are to be sent next."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanExport:
    """Sends spans on a thread of its own. `export` never waits: what is too much, or finds no collector, is dropped.

    A span becomes part of the trace that its traceparent names, if that one is recorded; without one it begins a trace.
    """

    def __init__(self, endpoint: str, service_name: str) -> None:
        """`endpoint`: http://HOST:PORT of a collector that speaks OTLP over gRPC, or https://."""
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
        resource = Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version()})
        self._ended = _EndedSpans()
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("pypto_serving")
        self._propagator = TraceContextTextMapPropagator()
        self._waiting: queue.Queue[tuple[ExportedSpan, str] | None] = queue.Queue(_MAX_WAITING)
        self._num_refused = 0  # by `export`
        self._num_lost = 0  # on the way to the collector
        self._is_over = False  # nothing comes any more
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Spans that no collector has got and none will; may be asked on any thread."""
        return self._num_refused + self._num_lost

    def export(self, span: ExportedSpan, traceparent: str) -> None:
        """Leave a span to be sent; any thread may."""
        try:
            self._waiting.put_nowait((span, traceparent))
        except queue.Full:
            self._num_refused += 1 + len(span.children)

    def close(self) -> None:
        """Send what waits, for a moment, and end."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(_CLOSE_SECONDS)
        self._exporter.shutdown()  # it tries no more

    def _run(self) -> None:
        while not self._is_over:
            for span, traceparent in self._next_batch():
                try:
                    parent = self._propagator.extract({TRACEPARENT: traceparent}) if traceparent else Context()
                    self._start(span, parent, time.time_ns() - time.monotonic_ns(), SpanKind.SERVER)
                except Exception:
                    _log.exception("a span cannot be exported")
                    self._num_lost += 1
            self._send()

    def _next_batch(self) -> list[tuple[ExportedSpan, str]]:
        """Wait for a span, and a moment for more to be sent with it."""
        batch: list[tuple[ExportedSpan, str]] = []
        due = time.monotonic()
        with contextlib.suppress(queue.Empty):
            while len(batch) < _MAX_BATCH:
                waiting = self._waiting.get(timeout=max(0.0, due - time.monotonic()) if batch else None)
                if waiting is None:
                    self._is_over = True
                    break
                if not batch:
                    due = time.monotonic() + _BATCH_SECONDS
                batch.append(waiting)
        return batch

    def _send(self) -> None:
        spans, self._ended.spans = self._ended.spans, []
        try:
            is_sent = not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            _log.exception("spans cannot be sent")
            is_sent = False
        self._num_lost += 0 if is_sent else len(spans)

    def _start(self, span: ExportedSpan, parent: Context, to_wall_ns: int, kind: SpanKind) -> None:
        started = self._tracer.start_span(span.name, parent, kind, attributes=dict(span.attributes), start_time=span.begin_ns + to_wall_ns)
        for child in span.children:
            self._start(child, set_span_in_context(started, parent), to_wall_ns, SpanKind.INTERNAL)
        if span.failure:
            started.set_status(Status(StatusCode.ERROR, span.failure))
        started.end(span.end_ns + to_wall_ns)
