"""Sequences as spans for an OpenTelemetry collector: from a lane's admission to its release."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pypto_serving.process.exported_span import Export, ExportedSpan
from worker.step import LaneAdmission, Step


@dataclass(frozen=True, slots=True)
class _Lane:
    admission: LaneAdmission
    first_step_id: int
    begin_ns: int


class SequenceExport:
    """Exports those that belong to a trace; requests without one show at the control plane alone. Belongs to the event loop."""

    def __init__(self, export: Export | None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Without `export` nothing is done."""
        self._export = export
        self._clock = clock
        self._lanes: dict[int, _Lane] = {}

    def accepted(self, step: Step) -> None:
        """A step was taken in, with the lanes that it releases and admits."""
        if self._export is None:
            return
        for lane in step.released_lanes.tolist():
            self._end(lane, step.step_id, "")
        for admission in step.admissions:
            if admission.traceparent:
                self._lanes[admission.lane] = _Lane(admission, step.step_id, self._clock())

    def forgotten(self, step_id: int) -> None:
        """All lanes were forgotten: a reset, another owner, a lease that ran out."""
        for lane in tuple(self._lanes):
            self._end(lane, step_id, "the worker forgot the sequence")

    def _end(self, number: int, step_id: int, failure: str) -> None:
        lane = self._lanes.pop(number, None)
        if lane is None or self._export is None:
            return
        attributes = {
            "pypto_serving.lane": number,
            "pypto_serving.first_step": lane.first_step_id,
            "pypto_serving.last_step": max(step_id, lane.first_step_id),
            "pypto_serving.cached_tokens": lane.admission.num_computed_tokens,
            "gen_ai.usage.input_tokens": lane.admission.num_prompt_tokens,
        }
        self._export.export(ExportedSpan("sequence", lane.begin_ns, self._clock(), attributes, failure), lane.admission.traceparent)
