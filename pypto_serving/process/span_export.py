"""Spans for an OpenTelemetry collector, over OTLP; needs the extra `otel`."""

import contextlib
import logging
import queue
import threading
import time

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pypto_serving.process.exported_span import ExportedSpan
from pypto_serving.process.version import version
from pypto_serving.wire.traceparent import TRACEPARENT

_log = logging.getLogger(__name__)

#: Spans that wait to be taken in, and as many that wait to be sent.
_MAX_WAITING = 4096
_EXPORT_SECONDS, _CLOSE_SECONDS = 5.0, 2.0


class SpanExport:
    """Sends spans on threads of its own. `export` never waits: what is too much, or finds no collector, is dropped.

    A span becomes part of the trace that its traceparent names, if that one is recorded; without one it begins a trace.
    """

    def __init__(self, endpoint: str, service_name: str) -> None:
        """`endpoint`: http://HOST:PORT of a collector that speaks OTLP over gRPC, or https://."""
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
        resource = Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: version()})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=_MAX_WAITING))
        self._tracer = self._provider.get_tracer("pypto_serving")
        self._propagator = TraceContextTextMapPropagator()
        self._waiting: queue.Queue[tuple[ExportedSpan, str] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()
        self.num_dropped = 0  # before they reached the library, which counts for itself

    def export(self, span: ExportedSpan, traceparent: str) -> None:
        """Leave a span to be sent; any thread may."""
        try:
            self._waiting.put_nowait((span, traceparent))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Send what waits, for a moment, and end."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_SECONDS)
        self._thread.join(_CLOSE_SECONDS)
        # By itself it would wait for a collector that is gone for half a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="span-export-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()  # it tries no more

    def _run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            span, traceparent = waiting
            try:
                parent = self._propagator.extract({TRACEPARENT: traceparent}) if traceparent else Context()
                self._start(span, parent, time.time_ns() - time.monotonic_ns(), SpanKind.SERVER)
            except Exception:
                _log.exception("a span cannot be exported")

    def _start(self, span: ExportedSpan, parent: Context, to_wall_ns: int, kind: SpanKind) -> None:
        started = self._tracer.start_span(span.name, parent, kind, attributes=dict(span.attributes), start_time=span.begin_ns + to_wall_ns)
        for child in span.children:
            self._start(child, set_span_in_context(started, parent), to_wall_ns, SpanKind.INTERNAL)
        if span.failure:
            started.set_status(Status(StatusCode.ERROR, span.failure))
        started.end(span.end_ns + to_wall_ns)
