"""Requests, their ends, and what is told about them."""

import asyncio

import pytest
import uvloop
from fakes.control_plane.engine_doubles import Bench, RecordingFrontEnd, RecordingMetrics, make_request
from fakes.worker.strict_worker import StrictWorker, describe, prompt_logprob, solo

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, FinishReason, WorkerEvents

PROMPT = (1, 2, 3)


def failure_of(bench: Bench, request_id: str = "r") -> Failure:
    return bench.front_end.failed[request_id].failure


def test_a_request_streams_the_tokens_of_the_model():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)
    finished = bench.front_end.finished["r", 0]
    assert (finished.reason, finished.end_token_id, finished.num_generated_tokens) == (FinishReason.LENGTH, None, 20)
    bench.assert_at_rest()


def test_an_end_token_stops_and_counts():
    expected = solo(PROMPT, 20)
    bench = Bench()
    bench.submit(max_tokens=20, end_token_ids=frozenset({expected[4]}))
    bench.run()
    finished = bench.front_end.finished["r", 0]
    assert (finished.reason, finished.end_token_id, finished.num_generated_tokens) == (FinishReason.STOP, expected[4], 5)
    assert bench.front_end.output_of("r") == expected[:5]


def test_end_tokens_are_not_looked_at_before_min_tokens():
    ends = frozenset(solo(PROMPT, 3))
    bench = Bench()
    bench.submit(max_tokens=20, min_tokens=6, end_token_ids=ends)
    bench.run()
    expected = solo(PROMPT, 20, ends, min_tokens=6)
    assert bench.front_end.output_of("r") == expected
    assert len(expected) > 6


def test_a_choice_that_its_front_end_finishes_ends_with_stop_and_runs_no_further():
    bench = Bench()
    bench.submit(max_tokens=50)
    bench.submit("other", max_tokens=20)
    bench.run(5)
    num_told = len(bench.front_end.output_of("r"))
    bench.finish("r")
    bench.run()
    finished = bench.front_end.finished["r", 0]
    assert (finished.reason, finished.end_token_id, finished.num_generated_tokens) == (FinishReason.STOP, None, num_told)
    assert bench.front_end.output_of("r") == solo(PROMPT, num_told)
    assert bench.front_end.output_of("other") == solo(PROMPT, 20)
    bench.assert_at_rest()


def test_a_choice_that_has_ended_cannot_be_finished():
    bench = Bench()
    bench.submit()
    number = bench.front_end.number_of("r")
    bench.run()
    bench.engine.finish(bench.front_end, number)
    bench.run()
    assert bench.front_end.finished["r", 0].reason is FinishReason.LENGTH
    assert len(bench.metrics.total("finished")) == 1


def test_an_end_token_wins_over_the_length():
    expected = solo(PROMPT, 4)
    bench = Bench()
    bench.submit(max_tokens=4, end_token_ids=frozenset({expected[3]}))
    bench.run()
    assert bench.front_end.finished["r", 0].reason is FinishReason.STOP


@pytest.mark.parametrize("length", [1, 4, 9])
def test_no_tokens_wanted_computes_the_prompt_and_ends(length):
    bench = Bench(max_step_tokens=4)
    bench.submit("r", tuple(range(length)), max_tokens=0)
    bench.run()
    finished = bench.front_end.finished["r", 0]
    assert (finished.reason, finished.num_generated_tokens) == (FinishReason.LENGTH, 0)
    bench.submit("next", (*range(length), 50), max_tokens=1)
    bench.run()
    assert bench.front_end.finished["next", 0].num_cached_tokens == length // 4 * 4


def test_a_live_id_is_refused_and_free_again_after_its_end():
    bench = Bench()
    bench.submit()
    bench.submit()
    bench.turn()
    assert failure_of(bench) is Failure.ALREADY_EXISTS
    bench.run()
    assert ("r", 0) in bench.front_end.finished
    bench.front_end.forget()
    bench.submit()
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 8)


def test_a_resume_with_the_key_takes_a_live_request_over():
    expected = solo(PROMPT, 20)
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run(5)
    bench.turn()
    bench.front_end.forget()
    bench.submit(max_tokens=20, resumed=expected[:2], takes_over=True)
    bench.run()
    assert failure_of(bench) is Failure.CANCELLED
    assert bench.front_end.output_of("r") == expected[2:]
    assert bench.front_end.finished["r", 0].num_generated_tokens == 20


def test_a_resume_with_another_key_is_refused():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.submit(max_tokens=20, takes_over=True, resume_key=b"other")
    bench.run()
    assert failure_of(bench) is Failure.ALREADY_EXISTS
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)


def test_a_resume_whose_choices_have_all_ended_is_accepted_and_forgotten():
    bench = Bench()
    bench.submit(choices=(), takes_over=True)
    bench.turn()
    assert bench.front_end.accepted == {"r"}
    assert not (bench.front_end.failed or bench.worker.history)
    assert bench.metrics.total("finished") == [FinishReason.STOP]
    bench.submit()
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 8)


def test_prompt_logprobs_come_once_and_whole():
    prompt = tuple(range(20))
    bench = Bench(max_step_tokens=7)
    bench.submit("warm", prompt, max_tokens=1)
    bench.run()
    bench.submit("r", prompt, max_tokens=4, sampling=SamplingParams(prompt_logprobs=0, logprobs=True))
    bench.run()
    entries = bench.front_end.prompt_logprobs["r"]
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
    assert [entry.token_id for entry in bench.front_end.prompt_logprobs["r"]] == list(prompt)
    assert bench.front_end.output_of("r") == solo(prompt, 4)


def test_prompt_logprobs_of_one_token_come_too():
    bench = Bench()
    bench.submit("r", (5,), sampling=SamplingParams(prompt_logprobs=0))
    bench.run()
    assert len(bench.front_end.prompt_logprobs["r"]) == 1


def test_an_aborted_request_runs_no_further_steps_than_those_in_flight():
    bench = Bench()
    bench.submit(max_tokens=50)
    bench.run(5)
    num_sent = len(bench.worker.history)
    assert bench.engine.abort("r")
    bench.turn()
    bench.run()
    assert failure_of(bench) is Failure.CANCELLED
    later = bench.worker.history[num_sent:]
    assert [(list(step.released_lanes), step.num_tokens) for step in later] == [([0], 0)]
    bench.assert_at_rest()
    assert not bench.engine.abort("r")


def test_an_abort_in_the_queue_never_reaches_a_worker():
    bench = Bench(describe(max_lanes=1))
    for name in ("a", "b", "c"):
        bench.submit(name, max_tokens=4)
    bench.turn()
    bench.engine.abort("b")
    bench.run()
    assert failure_of(bench, "b") is Failure.CANCELLED
    assert bench.front_end.output_of("b") == []
    assert bench.front_end.output_of("c") == solo(PROMPT, 4)
    assert sum(len(step.admissions) for step in bench.worker.history) == 2


def test_pages_of_an_aborted_request_are_not_reused_under_a_running_step():
    bench = Bench(describe(groups=[(4, 4, None)]))
    bench.submit("a", max_tokens=13)
    bench.run(3)
    bench.engine.abort("a")
    bench.submit("b", (7, 8, 9), max_tokens=13)
    bench.turn()
    assert not any(step.admissions for step in bench.worker.steps)
    bench.run()
    assert bench.front_end.output_of("b") == solo((7, 8, 9), 13)


def test_a_lane_error_ends_its_request_only():
    bench = Bench()
    bench.submit("a", max_tokens=20)
    bench.submit("b", max_tokens=20)
    bench.run(2)
    bench.worker.failing_lanes[0] = "not a number"
    bench.run()
    assert failure_of(bench, "a") is Failure.INTERNAL
    assert bench.front_end.failed["a"].message == "not a number, request_id 'a'"
    assert bench.front_end.output_of("b") == solo(PROMPT, 20)


def test_a_full_queue_refuses_with_numbers_and_a_time():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_requests=2))
    for name in "abcd":
        bench.submit(name)
        bench.turn()
    failed = bench.front_end.failed["d"]
    assert failed.failure is Failure.QUEUE_FULL
    assert "2 sequences wait, 1 would come, limit 2" in failed.message
    assert failed.retry_after_seconds > 0


def test_a_queue_full_of_tokens_refuses():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_tokens=10))
    for name in "abcd":
        bench.submit(name, (1, 2, 3, 4, 5))
        bench.turn()
    assert "10 tokens wait, 5 would come, limit 10" in bench.front_end.failed["d"].message


def test_a_request_that_can_never_fit_is_refused_with_both_numbers():
    bench = Bench(describe(groups=[(16, 10, None)]))
    bench.submit("long", tuple(range(90)) * 2, max_tokens=20)
    bench.submit("short")
    bench.run()
    assert failure_of(bench, "long") is Failure.INVALID_ARGUMENT
    assert "200" in bench.front_end.failed["long"].message
    assert "160" in bench.front_end.failed["long"].message
    assert bench.front_end.output_of("short") == solo(PROMPT, 8)


def test_a_request_taken_in_before_the_limit_is_known_is_checked_later():
    front_end, engine = RecordingFrontEnd(), Engine(Scheduler(), RecordingMetrics())
    front_end.submit(engine, make_request("r", max_tokens=100))
    engine.worker_joined(StrictWorker(engine, describe(groups=[(4, 5, None)])))
    engine.turn()
    assert front_end.failed["r"].failure is Failure.INVALID_ARGUMENT


def test_requests_without_a_worker_end_after_the_grace_time():
    bench = Bench(grace_seconds=30.0)
    bench.lose(bench.worker)
    bench.submit()
    bench.clock.now += 29.0
    bench.turn()
    assert not bench.front_end.failed
    bench.clock.now += 1.0
    bench.turn()
    assert failure_of(bench) is Failure.UNAVAILABLE
    bench.assert_at_rest()


def test_a_drain_ends_what_never_ran_and_lets_the_rest_finish():
    bench = Bench(describe(max_lanes=1))
    bench.submit("runs", max_tokens=20)
    bench.submit("waits")
    bench.run(2)
    bench.engine.drain(bench.front_end)
    bench.submit("new")
    bench.run()
    assert failure_of(bench, "waits") is failure_of(bench, "new") is Failure.UNAVAILABLE
    assert bench.front_end.output_of("runs") == solo(PROMPT, 20)


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
    front_end, failed = RecordingFrontEnd(), asyncio.Event()
    engine = Engine(Scheduler(), RecordingMetrics(), options=EngineOptions(snapshot_seconds=0.01))

    def fail(outputs) -> None:
        failed.set()
        raise RuntimeError("broken front end")

    monkeypatch.setattr(front_end, "publish", fail)
    running = asyncio.create_task(engine.run())
    front_end.submit(engine, make_request())
    await failed.wait()
    assert not engine.snapshot.healthy  # we are woken before the timer of the next pass can be
    while not engine.snapshot.healthy:
        await asyncio.sleep(0.01)
    engine.stop()
    await running


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("grace_seconds", [0.05, 0.0])  # 0: a timer that is due at once is none of uvloop's timers
def test_the_loop_wakes_up_by_itself(loop_factory, grace_seconds):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(wake_up_by_itself(grace_seconds))


async def wake_up_by_itself(grace_seconds: float) -> None:
    front_end, options = RecordingFrontEnd(), EngineOptions(snapshot_seconds=0.01)
    engine = Engine(Scheduler(SchedulerOptions(grace_seconds=grace_seconds)), RecordingMetrics(), options=options)
    events: WorkerEvents = engine
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(engine.run())
    front_end.submit(engine, make_request("lonely", arrival_time=loop.time()))
    while "lonely" not in front_end.failed:
        await asyncio.sleep(0.01)
    events.worker_joined(SelfRunningWorker(engine))
    front_end.submit(engine, make_request("r", arrival_time=loop.time()))
    while ("r", 0) not in front_end.finished:
        await asyncio.sleep(0.01)
    engine.stop()
    await running
    assert front_end.output_of("r") == solo(PROMPT, 8)
    assert engine.snapshot.max_model_len > 0
