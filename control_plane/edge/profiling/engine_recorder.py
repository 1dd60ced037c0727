"""What the engine does, as spans of a recording."""

import time
from collections.abc import Callable, Iterable

from control_plane.core.replica import Replica
from control_plane.core.step import Step
from control_plane.edge.profiling.phases import choice_phases
from control_plane.edge.profiling.profiler import LocalRecorder
from control_plane.engine.engine import Engine
from control_plane.engine.ports import Failure
from control_plane.engine.request import LiveChoice
from control_plane.engine.tracer import EngineTracer
from pypto_serving.recording.flows import request_flow, step_flow
from pypto_serving.recording.recorder import Span, SpanRecorder

_LOOP, _REQUESTS = "engine loop", "requests"
_MAX_IN_FLIGHT = 4096


class RequestRecorder(EngineTracer):
    """One row per choice of a request.

    requests      | request: | queue | prefill | decode ... | |
    """

    def __init__(self, recorder: SpanRecorder, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._recorder = recorder
        self._clock = clock

    def choice_ended(self, choice: LiveChoice, failure: Failure | None) -> None:
        self._add_choice(choice, failure.value if failure else "finished")

    def add_live(self, choices: Iterable[LiveChoice]) -> None:
        """Add the choices that go on when the recording is over, as far as they have come."""
        with self._recorder.harmless():
            for choice in choices:
                self._add_choice(choice, "goes on")

    def failed(self, error: Exception) -> None:
        self._recorder.fail(error)

    def _add_choice(self, choice: LiveChoice, outcome: str) -> None:
        now, sequence, spec = self._clock() / 1e9, choice.sequence, choice.request.spec
        row, flow = f"{spec.request_id}#{sequence.choice}", (request_flow(spec.request_id, sequence.choice),)
        counts = {
            "prompt_tokens": sequence.num_prompt_tokens,
            "cached_tokens": sequence.num_cached_tokens,
            "generated_tokens": sequence.num_generated_tokens,
            "readmissions": max(0, sequence.num_admissions - 1),
        }
        labels = {"request_id": spec.request_id, "outcome": outcome, "traceparent": spec.traceparent}
        phases = choice_phases(choice, now)
        arrival_ns = round(phases[0][1] * 1e9)
        self._recorder.add(Span("request", _REQUESTS, row, arrival_ns, round(now * 1e9) - arrival_ns, (), counts, labels))
        for name, begin, end in phases:
            flows = () if name == "prefill" else flow
            self._recorder.add(Span(name, _REQUESTS, row, round(begin * 1e9), round(end * 1e9) - round(begin * 1e9), flows))


class EngineRecorder(RequestRecorder):
    """And what the loop spends its time on, and how long each step is on its way.

    engine loop   | result | schedule | send | publish |
    link HOST:PORT       | step 17, from its way out to its result's coming in ... |
    """

    def __init__(self, recorder: SpanRecorder, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(recorder, clock)
        self._since_ns = 0  # until when the time of the pass was told
        self._sent: dict[tuple[Replica, int], tuple[int, dict[str, int]]] = {}  # steps in flight: when they were sent, and their counts
        self._flows: list[str] = []  # of the steps whose results the pass has taken in
        self._num_tokens = 0

    def pass_begun(self) -> None:
        self._since_ns = self._clock()

    def result_applied(self, replica: Replica, step_id: int, num_tokens: int) -> None:
        flow = step_flow(replica.description.incarnation, step_id)
        self._flows.append(flow)
        self._num_tokens += num_tokens
        self._spend("result", [flow], {"step": step_id, "tokens": num_tokens})

    def scheduled(self) -> None:
        self._spend("schedule")

    def step_sent(self, replica: Replica, step: Step) -> None:
        admitted = [replica.sequence_in(admission.lane) for admission in step.admissions]
        flows = [step_flow(replica.description.incarnation, step.step_id)]
        flows += [request_flow(sequence.request_id, sequence.choice) for sequence in admitted if sequence is not None]
        num_chunk_tokens = sum(step.chunk_tokens)
        counts = {
            "step": step.step_id,
            "tokens": step.num_tokens,
            "decodes": step.num_tokens - num_chunk_tokens,
            "chunks": len(step.chunk_lanes),
            "chunk_tokens": num_chunk_tokens,
            "admitted": len(admitted),
        }
        self._spend("send", flows, counts)
        if len(self._sent) >= _MAX_IN_FLIGHT:  # those of lost workers are never answered
            del self._sent[next(iter(self._sent))]
        self._sent[replica, step.step_id] = self._since_ns, counts

    def published(self) -> None:
        self._spend("publish", self._flows, {"tokens": self._num_tokens})
        self._flows, self._num_tokens = [], 0

    def result_arrived(self, replica: Replica, step_id: int) -> None:
        sent_ns, counts = self._sent.pop((replica, step_id), (0, {}))
        if sent_ns:
            track = f"link {replica.description.address}"
            self._recorder.add(Span(f"step {step_id}", track, "", sent_ns, self._clock() - sent_ns, (), counts))

    def _spend(self, name: str, flows: Iterable[str] = (), counts: dict[str, int] | None = None) -> None:
        """Say what the time since the last call was spent on."""
        now = self._clock()
        self._recorder.add(Span(name, _LOOP, "", self._since_ns, now - self._since_ns, tuple(flows), counts or {}))
        self._since_ns = now


def record_engine(engine: Engine) -> LocalRecorder:
    """Lets an engine take part in recordings."""
    running: list[RequestRecorder] = []

    def record(recorder: SpanRecorder | None) -> None:
        while running:
            ended = running.pop()
            engine.tracers.remove(ended)
            ended.add_live(engine.live_choices)
        if recorder is not None:
            kind = EngineRecorder if recorder.has_steps else RequestRecorder
            running.append(kind(recorder))
            engine.tracers.add(running[-1])

    return record
