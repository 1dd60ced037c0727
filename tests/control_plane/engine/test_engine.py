"""Requests, their ends, and what is told about them."""

import asyncio

import pytest
from fakes.control_plane.engine_doubles import Bench, RecordingMetrics, RecordingSink, make_request
from fakes.worker.strict_worker import StrictWorker, describe, prompt_logprob, solo

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, FinishReason, WorkerEvents

PROMPT = (1, 2, 3)


def failure_of(bench: Bench, request_id: str = "r") -> Failure:
    return bench.sink.failed[request_id].failure


def test_a_request_streams_the_tokens_of_the_model():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run()
    assert bench.sink.output_of("r") == solo(PROMPT, 20)
    finished = bench.sink.finished["r", 0]
    assert (finished.reason, finished.matched_stop, finished.num_generated_tokens) == (FinishReason.LENGTH, None, 20)
    bench.assert_at_rest()


def test_an_end_token_stops_and_counts_and_its_text_is_left_to_the_text_stream():
    expected = solo(PROMPT, 20)
    bench = Bench()
    bench.submit(max_tokens=20, end_token_ids=frozenset({expected[4]}))
    bench.run()
    finished = bench.sink.finished["r", 0]
    assert (finished.reason, finished.matched_stop, finished.num_generated_tokens) == (FinishReason.STOP, expected[4], 5)
    assert bench.sink.output_of("r") == expected[:5]
    assert bench.sink.texts["r", 0] == "".join(f"<{token}>" for token in expected[:5])


def test_end_tokens_are_not_looked_at_before_min_tokens():
    ends = frozenset(solo(PROMPT, 3))
    bench = Bench()
    bench.submit(max_tokens=20, min_tokens=6, end_token_ids=ends)
    bench.run()
    expected = solo(PROMPT, 20, ends, min_tokens=6)
    assert bench.sink.output_of("r") == expected
    assert len(expected) > 6


def test_a_stop_string_stops_and_later_tokens_are_dropped():
    expected = solo(PROMPT, 20)
    bench = Bench()
    bench.submit(max_tokens=20, stop=(f"{expected[3]}>",))
    bench.run()
    finished = bench.sink.finished["r", 0]
    assert (finished.reason, finished.matched_stop) == (FinishReason.STOP, f"{expected[3]}>")
    assert finished.num_generated_tokens == 4
    assert bench.sink.output_of("r") == expected[:4]
    assert not bench.sink.failed


def test_a_stop_wins_over_the_length():
    expected = solo(PROMPT, 4)
    bench = Bench()
    bench.submit(max_tokens=4, stop=(f"<{expected[3]}>",))
    bench.run()
    assert bench.sink.finished["r", 0].reason is FinishReason.STOP


def test_text_held_back_comes_with_the_end():
    bench = Bench()
    bench.submit(max_tokens=4, stop=("never seen",))
    bench.run()
    assert bench.sink.texts["r", 0] == "".join(f"<{token}>" for token in solo(PROMPT, 4))


@pytest.mark.parametrize("length", [1, 4, 9])
def test_no_tokens_wanted_computes_the_prompt_and_ends(length):
    bench = Bench(max_step_tokens=4)
    bench.submit("r", tuple(range(length)), max_tokens=0)
    bench.run()
    finished = bench.sink.finished["r", 0]
    assert (finished.reason, finished.num_generated_tokens) == (FinishReason.LENGTH, 0)
    bench.submit("next", (*range(length), 50), max_tokens=1)
    bench.run()
    assert bench.sink.finished["next", 0].num_cached_tokens == length // 4 * 4


def test_a_live_id_is_refused_and_free_again_after_its_end():
    bench = Bench()
    bench.submit()
    bench.submit()
    bench.turn()
    assert failure_of(bench) is Failure.ALREADY_EXISTS
    bench.run()
    assert ("r", 0) in bench.sink.finished
    bench.sink.__init__()
    bench.submit()
    bench.run()
    assert bench.sink.output_of("r") == solo(PROMPT, 8)


def test_a_resume_with_the_key_takes_a_live_request_over():
    expected = solo(PROMPT, 20)
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run(5)
    bench.turn()
    bench.sink.__init__()
    bench.submit(max_tokens=20, resumed=expected[:2], takes_over=True)
    bench.run()
    assert failure_of(bench) is Failure.CANCELLED
    assert bench.sink.first_index["r", 0] == 2
    assert bench.sink.output_of("r") == expected[2:]
    assert bench.sink.finished["r", 0].num_generated_tokens == 20


def test_a_resume_with_another_key_is_refused():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.submit(max_tokens=20, takes_over=True, resume_key=b"other")
    bench.run()
    assert failure_of(bench) is Failure.ALREADY_EXISTS
    assert bench.sink.output_of("r") == solo(PROMPT, 20)


@pytest.mark.parametrize("changes", [{}, {"stop": ("<",)}, {"end_token_ids": frozenset({solo(PROMPT, 5)[-1]})}])
def test_a_resume_that_has_ended_only_tells_the_end(changes):
    bench = Bench()
    bench.submit(max_tokens=5, resumed=solo(PROMPT, 5), **changes)
    bench.run()
    assert bench.sink.output_of("r") == []
    assert bench.sink.finished["r", 0].num_generated_tokens == (1 if "stop" in changes else 5)
    assert not bench.worker.history


def test_prompt_logprobs_come_once_and_whole():
    prompt = tuple(range(20))
    bench = Bench(max_step_tokens=7)
    bench.submit("warm", prompt, max_tokens=1)
    bench.run()
    bench.submit("r", prompt, max_tokens=4, sampling=SamplingParams(prompt_logprobs=0, logprobs=True))
    bench.run()
    entries = bench.sink.prompt_logprobs["r"]
    assert [entry.token_id for entry in entries] == list(prompt)
    assert [entry.logprob for entry in entries] == [None, *(prompt_logprob(prompt, index) for index in range(1, 20))]


def test_prompt_logprobs_survive_a_lost_worker():
    prompt = tuple(range(20))
    bench = Bench(max_step_tokens=7)
    bench.submit("r", prompt, max_tokens=4, sampling=SamplingParams(prompt_logprobs=0))
    bench.run(2)
    bench.lose(bench.worker)
    bench.join(describe())
    bench.run()
    assert [entry.token_id for entry in bench.sink.prompt_logprobs["r"]] == list(prompt)
    assert bench.sink.output_of("r") == solo(prompt, 4)


def test_prompt_logprobs_of_one_token_come_too():
    bench = Bench()
    bench.submit("r", (5,), sampling=SamplingParams(prompt_logprobs=0))
    bench.run()
    assert len(bench.sink.prompt_logprobs["r"]) == 1


def test_an_aborted_request_runs_no_further_steps_than_those_in_flight():
    bench = Bench()
    bench.submit(max_tokens=50)
    bench.run(5)
    num_sent = len(bench.worker.history)
    assert bench.abort("r")
    bench.turn()
    bench.run()
    assert failure_of(bench) is Failure.CANCELLED
    later = bench.worker.history[num_sent:]
    assert [(list(step.released_lanes), step.num_tokens) for step in later] == [([0], 0)]
    bench.assert_at_rest()
    assert not bench.abort("r")


def test_an_abort_in_the_queue_never_reaches_a_worker():
    bench = Bench(describe(max_lanes=1))
    for name in ("a", "b", "c"):
        bench.submit(name, max_tokens=4)
    bench.turn()
    bench.abort("b")
    bench.run()
    assert failure_of(bench, "b") is Failure.CANCELLED
    assert bench.sink.output_of("b") == []
    assert bench.sink.output_of("c") == solo(PROMPT, 4)
    assert sum(len(step.admissions) for step in bench.worker.history) == 2


def test_pages_of_an_aborted_request_are_not_reused_under_a_running_step():
    bench = Bench(describe(groups=[(4, 4, None)]))
    bench.submit("a", max_tokens=13)
    bench.run(3)
    bench.abort("a")
    bench.submit("b", (7, 8, 9), max_tokens=13)
    bench.turn()
    assert not any(step.admissions for step in bench.worker.steps)
    bench.run()
    assert bench.sink.output_of("b") == solo((7, 8, 9), 13)


def test_a_lane_error_ends_its_request_only():
    bench = Bench()
    bench.submit("a", max_tokens=20)
    bench.submit("b", max_tokens=20)
    bench.run(2)
    bench.worker.failing_lanes[0] = "not a number"
    bench.run()
    assert failure_of(bench, "a") is Failure.INTERNAL
    assert bench.sink.failed["a"].message == "not a number, request_id 'a'"
    assert bench.sink.output_of("b") == solo(PROMPT, 20)


def test_a_full_queue_refuses_with_numbers_and_a_time():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_requests=2))
    for name in "abcd":
        bench.submit(name)
        bench.turn()
    failed = bench.sink.failed["d"]
    assert failed.failure is Failure.QUEUE_FULL
    assert "2 sequences wait, 1 would come, limit 2" in failed.message
    assert failed.retry_after_seconds > 0


def test_a_queue_full_of_tokens_refuses():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_tokens=10))
    for name in "abcd":
        bench.submit(name, (1, 2, 3, 4, 5))
        bench.turn()
    assert "10 tokens wait, 5 would come, limit 10" in bench.sink.failed["d"].message


def test_a_request_that_can_never_fit_is_refused_with_both_numbers():
    bench = Bench(describe(groups=[(16, 10, None)]))
    bench.submit("long", tuple(range(90)) * 2, max_tokens=20)
    bench.submit("short")
    bench.run()
    assert failure_of(bench, "long") is Failure.INVALID_ARGUMENT
    assert "200" in bench.sink.failed["long"].message
    assert "160" in bench.sink.failed["long"].message
    assert bench.sink.output_of("short") == solo(PROMPT, 8)


def test_a_request_taken_in_before_the_limit_is_known_is_checked_later():
    sink = RecordingSink()
    engine = Engine(Scheduler(), sink, RecordingMetrics())
    engine.submit(make_request("r", max_tokens=100))
    engine.worker_joined(StrictWorker(engine, describe(groups=[(4, 5, None)])))
    engine.turn()
    assert sink.failed["r"].failure is Failure.INVALID_ARGUMENT


def test_requests_without_a_worker_end_after_the_grace_time():
    bench = Bench(grace_seconds=30.0)
    bench.lose(bench.worker)
    bench.submit()
    bench.clock.now += 29.0
    bench.turn()
    assert not bench.sink.failed
    bench.clock.now += 1.0
    bench.turn()
    assert failure_of(bench) is Failure.UNAVAILABLE
    bench.assert_at_rest()


def test_a_drain_ends_what_never_ran_and_lets_the_rest_finish():
    bench = Bench(describe(max_lanes=1))
    bench.submit("runs", max_tokens=20)
    bench.submit("waits")
    bench.run(2)
    bench.engine.drain()
    bench.submit("new")
    bench.run()
    assert failure_of(bench, "waits") is failure_of(bench, "new") is Failure.UNAVAILABLE
    assert bench.sink.output_of("runs") == solo(PROMPT, 20)


def test_the_snapshot_shows_sequences_and_pages():
    bench = Bench()
    bench.submit("r", max_tokens=20)
    bench.run(4)
    state = bench.engine.state(with_sequences=True)
    (sequence,) = state.sequences
    assert (sequence.request_id, sequence.worker, sequence.num_prompt_tokens) == ("r", "worker:1", 3)
    (worker,) = state.snapshot.workers
    assert worker.pages.referenced == sequence.num_pages
    assert worker.steps_in_flight == 2


def test_forgetting_the_cache_frees_it():
    bench = Bench()
    bench.submit("r", tuple(range(12)), max_tokens=4)
    bench.run()
    assert bench.engine.reset_prefix_cache() == 3
    assert bench.engine.state().snapshot.workers[0].pages.cached == 0


class SelfRunningWorker(StrictWorker):
    """Executes every step as soon as the loop is free."""

    def submit(self, step) -> None:
        super().submit(step)
        asyncio.get_running_loop().call_soon(self.run_step)


async def test_the_loop_finds_its_health_again_without_traffic(monkeypatch):
    sink, failed = RecordingSink(), asyncio.Event()
    engine = Engine(Scheduler(), sink, RecordingMetrics(), EngineOptions(snapshot_seconds=0.01))

    def fail(outputs) -> None:
        failed.set()
        raise RuntimeError("broken sink")

    monkeypatch.setattr(sink, "publish", fail)
    running = asyncio.create_task(engine.run())
    engine.submit(make_request())
    await failed.wait()
    assert not engine.snapshot.healthy  # we are woken before the timer of the next pass can be
    while not engine.snapshot.healthy:
        await asyncio.sleep(0.01)
    engine.stop()
    await running


async def test_the_loop_wakes_up_by_itself():
    sink, metrics = RecordingSink(), RecordingMetrics()
    engine = Engine(Scheduler(SchedulerOptions(grace_seconds=0.05)), sink, metrics, EngineOptions(snapshot_seconds=0.01))
    events: WorkerEvents = engine
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(engine.run())
    engine.submit(make_request("lonely", arrival_time=loop.time()))
    while "lonely" not in sink.failed:
        await asyncio.sleep(0.01)
    events.worker_joined(SelfRunningWorker(engine))
    engine.submit(make_request("r", arrival_time=loop.time()))
    while ("r", 0) not in sink.finished:
        await asyncio.sleep(0.01)
    engine.stop()
    await running
    assert sink.output_of("r") == solo(PROMPT, 8)
    assert engine.snapshot.max_model_len > 0
