"""What the engine does, as spans of a recording."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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

#: What is kept of a part of a pass: its name (empty: nothing was done), when it ended, and what it was about.
_Part = tuple[str, int, tuple[Any, ...]]

#: Of a step: its id, tokens, chunks, tokens of these, admissions.
_StepCounts = tuple[int, int, int, int, int]


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

    A pass leaves the times at which its parts ended, and numbers; spans are made of them when the recording is over.
    """

    def __init__(self, recorder: SpanRecorder, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(recorder, clock)
        self._begun_ns = recorder.begin_ns
        self._parts: list[_Part] = []  # since the last pass was over, as a result may be taken in before the next one
        self._sent: dict[tuple[Replica, int], tuple[int, _StepCounts]] = {}  # steps in flight, and when they were sent

    def pass_begun(self) -> None:
        if self._parts:
            self._parts.append(("", self._clock(), ()))
        else:
            self._begun_ns = self._clock()

    def result_applied(self, replica: Replica, step_id: int, num_tokens: int) -> None:
        self._parts.append(("result", self._clock(), (replica.description.incarnation, step_id, num_tokens)))

    def scheduled(self) -> None:
        self._parts.append(("schedule", self._clock(), ()))

    def step_sent(self, replica: Replica, step: Step) -> None:
        admitted = [replica.sequence_in(admission.lane) for admission in step.admissions]
        requests = [(sequence.request_id, sequence.choice) for sequence in admitted if sequence is not None]
        counts = step.step_id, step.num_tokens, len(step.chunk_lanes), sum(step.chunk_tokens), len(admitted)
        now = self._clock()
        self._parts.append(("send", now, (replica.description.incarnation, counts, requests)))
        if len(self._sent) >= _MAX_IN_FLIGHT:  # those of lost workers are never answered
            del self._sent[next(iter(self._sent))]
        self._sent[replica, step.step_id] = now, counts

    def published(self) -> None:
        now = self._clock()
        self._parts.append(("publish", now, ()))
        self._recorder.note(self._begun_ns, len(self._parts), _pass_spans, self._begun_ns, self._parts)
        self._begun_ns, self._parts = now, []

    def result_arrived(self, replica: Replica, step_id: int) -> None:
        sent_ns, counts = self._sent.pop((replica, step_id), (0, None))
        if counts:
            self._recorder.note(sent_ns, 1, _link_spans, replica.description.address, sent_ns, self._clock(), counts)


def _pass_spans(since_ns: int, parts: Iterable[_Part]) -> Iterator[Span]:
    """Each part takes from the end of the one before; `since_ns` is when the first one began."""
    result_flows: list[str] = []
    num_result_tokens = 0
    for name, until_ns, facts in parts:
        flows: list[str] = []
        counts: dict[str, int] = {}
        if name == "result":
            incarnation, step_id, num_tokens = facts
            flows, counts = [step_flow(incarnation, step_id)], {"step": step_id, "tokens": num_tokens}
            result_flows += flows
            num_result_tokens += num_tokens
        elif name == "send":
            incarnation, step_counts, requests = facts
            counts = _named(step_counts)
            flows = [step_flow(incarnation, counts["step"]), *(request_flow(*request) for request in requests)]
        elif name == "publish":
            flows, counts = result_flows, {"tokens": num_result_tokens}
        if name:
            yield Span(name, _LOOP, "", since_ns, until_ns - since_ns, flows, counts)
        since_ns = until_ns


def _link_spans(address: str, sent_ns: int, arrived_ns: int, counts: _StepCounts) -> Iterator[Span]:
    named = _named(counts)
    yield Span(f"step {named['step']}", f"link {address}", "", sent_ns, arrived_ns - sent_ns, (), named)


def _named(counts: _StepCounts) -> dict[str, int]:
    step_id, num_tokens, num_chunks, num_chunk_tokens, num_admitted = counts
    return {
        "step": step_id,
        "tokens": num_tokens,
        "decodes": num_tokens - num_chunk_tokens,
        "chunks": num_chunks,
        "chunk_tokens": num_chunk_tokens,
        "admitted": num_admitted,
    }


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
