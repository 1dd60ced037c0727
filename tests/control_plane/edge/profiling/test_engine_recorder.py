"""What the engine does, as spans."""

from itertools import pairwise

import pytest
from fakes.control_plane.engine_doubles import Bench

from control_plane.edge.profiling.engine_recorder import EngineRecorder, record_engine
from control_plane.engine.ports import Failure
from pypto_serving.recording.recorder import Level, RecordingLimits, Span, SpanRecorder


def record(bench: Bench, level: Level = Level.STEPS) -> SpanRecorder:
    recorder = SpanRecorder("a", RecordingLimits(level, 60.0, 1000))
    bench.engine.recording = record_engine(bench.engine)
    bench.engine.recording(recorder)
    return recorder


def of(recorder: SpanRecorder, track: str, name: str = "") -> list[Span]:
    return [span for span in recorder.spans() if span.track.startswith(track) and span.name.startswith(name)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_request_is_its_queue_its_prefill_and_its_decode(bench: Bench) -> None:
    recorder = record(bench, Level.REQUESTS)
    bench.submit("r", max_tokens=5)
    bench.run()
    assert [span.name for span in recorder.spans() if span.duration_ns] == [span.name for span in recorder.spans()]
    request, *phases = of(recorder, "requests")
    assert (request.name, request.counts["generated_tokens"], request.labels["outcome"]) == ("request", 5, "finished")
    assert {span.row for span in recorder.spans()} == {"r#0"}
    assert {span.name for span in phases} <= {"queue", "prefill", "decode"}
    assert sum(span.duration_ns for span in phases) == request.duration_ns


def test_a_failure_is_told(bench: Bench) -> None:
    recorder = record(bench, Level.REQUESTS)
    bench.submit("r", max_tokens=50)
    bench.run(3)
    bench.end("r", Failure.CANCELLED)
    assert of(recorder, "requests", "request")[0].labels["outcome"] == "cancelled"


def test_a_request_that_goes_on_is_told_as_far_as_it_came(bench: Bench) -> None:
    recorder = record(bench, Level.REQUESTS)
    bench.submit("r", max_tokens=50)
    bench.run(3)
    bench.engine.recording(None)
    [request] = of(recorder, "requests", "request")
    assert request.labels["outcome"] == "goes on" and 0 < request.counts["generated_tokens"] < 50


def test_steps_are_told_from_both_ends_of_the_link(bench: Bench) -> None:
    recorder = record(bench)
    bench.submit("r", prompt=(1, 2, 3), max_tokens=4)
    bench.run()
    sent, results = of(recorder, "engine loop", "send"), of(recorder, "engine loop", "result")
    assert [span.counts["step"] for span in sent] == [span.counts["step"] for span in results] == list(range(1, len(sent) + 1))
    assert (sent[0].counts["chunk_tokens"] + sent[0].counts["decodes"], sent[0].counts["admitted"]) == (3, 1)
    assert sum(span.counts["tokens"] for span in results) == 4
    assert len(of(recorder, "link", "step")) == len(sent)
    assert set(sent[0].flows) >= set(results[0].flows)
    assert "request r 0" in sent[0].flows


def test_the_time_of_a_pass_is_spent_without_a_gap(bench: Bench) -> None:
    recorder = record(bench)
    bench.submit("r", max_tokens=4)
    bench.turn()
    loop = of(recorder, "engine loop")
    assert [span.name for span in loop][:2] == ["schedule", "send"] and loop[-1].name == "publish"
    assert all(later.begin_ns == earlier.begin_ns + earlier.duration_ns for earlier, later in pairwise(loop))


def test_a_result_that_is_applied_between_two_passes_is_published_by_the_next_one(bench: Bench) -> None:
    recorder = record(bench)
    bench.submit("r", max_tokens=4)
    bench.turn()
    bench.worker.run_step()
    bench.lose(bench.worker)
    bench.turn()
    loop = of(recorder, "engine loop")
    assert [span.name for span in loop][-4:] == ["publish", "result", "schedule", "publish"]
    [result] = of(recorder, "engine loop", "result")
    assert (result.counts["tokens"], loop[-1].counts["tokens"], loop[-1].flows) == (1, 1, result.flows)


def test_the_requests_level_tells_of_no_steps(bench: Bench) -> None:
    recorder = record(bench, Level.REQUESTS)
    bench.submit("r", max_tokens=4)
    bench.run()
    assert {span.track for span in recorder.spans()} == {"requests"}


def test_when_it_is_over_nobody_listens(bench: Bench) -> None:
    recorder = record(bench)
    bench.engine.recording(None)
    bench.submit("r", max_tokens=4)
    bench.run()
    assert not list(recorder.spans())


def test_one_that_fails_ends_early_and_says_so(bench: Bench) -> None:
    def broken() -> int:
        raise OSError("no clock")

    recorder = SpanRecorder("a", RecordingLimits(Level.STEPS, 60.0, 1000))
    bench.engine.tracers.add(EngineRecorder(recorder, broken))
    bench.submit("r", max_tokens=4)
    bench.run()
    assert len(bench.front_end.output_of("r")) == 4
    assert (list(recorder.spans()), recorder.notes) == ([], ["it ends early, as it has failed: OSError: no clock"])
