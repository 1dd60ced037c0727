"""Requests as spans for an OpenTelemetry collector."""

import time
from collections.abc import Callable

from control_plane.edge.profiling.phases import choice_phases
from control_plane.engine.ports import Failure
from control_plane.engine.request import LiveChoice
from control_plane.engine.tracer import EngineTracer
from pypto_serving.process.exported_span import Export, ExportedSpan


class RequestExport(EngineTracer):
    """Exports a span for each choice of a request when it ends, with its time in the queue, its prefill and its decode inside."""

    def __init__(self, export: Export, clock: Callable[[], float] = time.monotonic) -> None:
        self._export = export
        self._clock = clock

    def choice_ended(self, choice: LiveChoice, failure: Failure | None) -> None:
        now, sequence, spec = self._clock(), choice.sequence, choice.request.spec
        phases = choice_phases(choice, now)
        attributes: dict[str, str | int] = {
            "pypto_serving.request_id": spec.request_id,
            "pypto_serving.choice": sequence.choice,
            "pypto_serving.cached_tokens": sequence.num_cached_tokens,
            "gen_ai.usage.input_tokens": sequence.num_prompt_tokens,
            "gen_ai.usage.output_tokens": sequence.num_generated_tokens,
        }
        children = [ExportedSpan(name, _ns(begin), _ns(end)) for name, begin, end in phases]
        failed = failure.value if failure else ""
        self._export.export(ExportedSpan("request", _ns(phases[0][1]), _ns(now), attributes, failed, children), spec.traceparent)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
