"""A span as it is handed to an exporter, which may not be installed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pypto_serving.process.start_up import needs_extra


@dataclass(frozen=True, slots=True)
class ExportedSpan:
    """A span with those inside it. Times are of the monotonic clock."""

    name: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    failure: str = ""  # empty: it went well
    children: Sequence["ExportedSpan"] = ()


class Export(Protocol):
    """Where spans go."""

    @property
    def num_dropped(self) -> int:
        """Spans that no collector has got and none will; may be asked on any thread."""

    def export(self, span: ExportedSpan, traceparent: str) -> None:
        """Leave a span to be sent, without waiting; it becomes part of the trace that `traceparent` names, or begins one."""

    def close(self) -> None:
        """Send what waits, for a moment, and end."""


def open_export(endpoint: str, service_name: str) -> Export:
    """What sends spans to a collector, http://HOST:PORT or https://; raises StartUpError without the extra that it needs."""
    with needs_extra("otel"):
        from pypto_serving.process.span_export import SpanExport
    return SpanExport(endpoint, service_name)
