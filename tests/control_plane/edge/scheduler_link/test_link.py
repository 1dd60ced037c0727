"""A front end's calls over the loss of schedulers: they see one request, from its acceptance to its end."""

import asyncio

import pytest
from fakes.control_plane.front_end_calls import make_request
from fakes.control_plane.session_engine import NUMERICS_ID, expected_tokens, logprob_of
from harness.waiting import until

from control_plane.core.pages.page_pool import PageCounts
from control_plane.core.sampling import SamplingParams
from control_plane.edge.scheduler_link.options import FrontEndNumbers
from control_plane.engine.ports import Failure, FinishReason
from control_plane.engine.snapshot import EngineSnapshot, WorkerSnapshot

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def _step_to_end(scheduler, call):
    while not call.has_ended:
        scheduler.engine.step()
        await asyncio.sleep(0.001)


async def _has(scheduler, *request_ids):
    await until(lambda: set(request_ids) <= scheduler.engine.live.keys())


async def _step(scheduler, call, num_tokens):
    """Let a call of one choice have so many tokens."""
    [number] = call.tokens
    await _has(scheduler, call.request.request_id)
    for count in range(len(call.tokens[number]) + 1, num_tokens + 1):
        scheduler.engine.step()
        await until(lambda count=count: len(call.tokens[number]) == count)


@pytest.fixture
async def scheduler(make_scheduler):
    scheduler = make_scheduler()
    await scheduler.start()
    return scheduler


@pytest.fixture
async def front_end(start_front_end, scheduler):
    return start_front_end(scheduler)


async def test_a_request_runs_to_its_end(front_end, scheduler):
    request = make_request("r", 2)
    call = front_end.submit(request)
    await _has(scheduler, "r")
    await _step_to_end(scheduler, call)
    assert list(call.tokens.values()) == [expected_tokens(request, choice) for choice in (0, 1)]
    assert list(call.numerics.values()) == [[NUMERICS_ID], [NUMERICS_ID]]
    assert {one.reason for one in call.finished.values()} == {FinishReason.LENGTH}
    assert next(iter(call.finished.values())).queue_seconds == 0.25


async def test_an_end_token_is_told(front_end, scheduler):
    token_id = expected_tokens(make_request("r"), 0)[1]
    request = make_request("r", end_token_ids=frozenset([token_id]))
    call = front_end.submit(request)
    await _step_to_end(scheduler, call)
    [finished] = call.finished.values()
    assert (finished.reason, finished.end_token_id, finished.num_generated_tokens) == (FinishReason.STOP, token_id, 2)


async def test_log_probabilities_arrive_bit_for_bit(front_end, scheduler):
    request = make_request("r", sampling=SamplingParams(logprobs=True, top_logprobs=2, prompt_logprobs=3))
    call = front_end.submit(request)
    await _step_to_end(scheduler, call)
    [number] = call.tokens
    assert call.logprobs[number] == [logprob_of(token_id, 2) for token_id in call.tokens[number]]
    [entries] = call.prompt_logprobs
    assert [entry.token_id for entry in entries] == [1, 2, 3]
    assert entries[0].logprob is None and entries[1:] == [logprob_of(2, 3), logprob_of(3, 3)]


async def test_a_request_survives_its_scheduler(front_end, scheduler):
    request = make_request("r", max_tokens=8, traceparent=TRACEPARENT)
    call = front_end.submit(request)
    await _step(scheduler, call, 3)
    await scheduler.kill()
    await scheduler.start()
    await _step_to_end(scheduler, call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]
    [resubmitted] = scheduler.engine.submitted
    assert resubmitted.was_accepted and resubmitted.takes_over and resubmitted.traceparent == TRACEPARENT
    assert list(resubmitted.choices[0].resumed_token_ids) == expected_tokens(request, 0)[:3]
    assert resubmitted.choices[0].resumed_numerics_id == NUMERICS_ID
    assert list(call.numerics.values()) == [[NUMERICS_ID]]
    [finished] = call.finished.values()
    assert finished.num_readmissions == 1 and finished.queue_seconds <= finished.first_token_seconds < 0.5


async def test_a_request_that_was_not_accepted_yet_is_submitted_as_a_new_one(front_end, scheduler):
    scheduler.engine.withholds_acceptance = True
    call = front_end.submit(make_request("r"))
    await _has(scheduler, "r")
    await scheduler.kill()
    await scheduler.start()
    await _step_to_end(scheduler, call)
    [resubmitted] = scheduler.engine.submitted
    assert not resubmitted.was_accepted and not resubmitted.takes_over and resubmitted.choices[0].resumed_numerics_id is None


async def test_tokens_that_were_lost_on_the_way_come_once(front_end, scheduler):
    request = make_request("r", max_tokens=8)
    call = front_end.submit(request)
    await _step(scheduler, call, 2)
    scheduler.engine.step()
    await scheduler.kill()
    await scheduler.start()
    await _step_to_end(scheduler, call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_requests_wait_for_the_first_scheduler(make_scheduler, start_front_end):
    scheduler = make_scheduler()
    front_end = start_front_end(scheduler)
    call = front_end.submit(make_request("r"))
    await scheduler.start()
    await _step_to_end(scheduler, call)
    assert call.finished


async def test_choices_that_have_ended_are_not_submitted_again(front_end, scheduler):
    tokens = [expected_tokens(make_request("r", 2, max_tokens=8), choice) for choice in (0, 1)]
    request = make_request("r", 2, max_tokens=8, end_token_ids=frozenset([tokens[0][2]]) - set(tokens[1]))
    call = front_end.submit(request)
    await _has(scheduler, "r")
    while len(call.finished) < 1:
        scheduler.engine.step()
        await asyncio.sleep(0.001)
    await scheduler.kill()
    await scheduler.start()
    await _step_to_end(scheduler, call)
    assert [choice.index for choice in scheduler.engine.submitted[0].choices] == [1]
    assert list(call.tokens.values()) == [tokens[0][:3], tokens[1]]


async def test_prompt_log_probabilities_come_once(front_end, scheduler):
    call = front_end.submit(make_request("r", max_tokens=6, sampling=SamplingParams(prompt_logprobs=1)))
    await _step(scheduler, call, 1)
    await scheduler.kill()
    await scheduler.start()
    await _step_to_end(scheduler, call)
    assert len(call.prompt_logprobs) == 1
    assert scheduler.engine.submitted[0].choices[0].sampling.prompt_logprobs is None


async def test_a_stop_string_ends_a_choice(front_end, scheduler):
    call = front_end.submit(make_request("r", max_tokens=100))
    await _step(scheduler, call, 2)
    [number] = call.tokens
    front_end.link.finish(number)
    front_end.link.finish(number)
    await until(lambda: call.has_ended)
    assert call.finished[number].reason is FinishReason.STOP and call.finished[number].end_token_id is None
    assert scheduler.engine.calls == [("finish", number)]


async def test_a_choice_that_was_to_finish_does_so_without_its_scheduler(front_end, scheduler):
    call = front_end.submit(make_request("r", 2, max_tokens=100))
    await _has(scheduler, "r")
    first, second = call.tokens
    scheduler.engine.step()
    await until(lambda: call.tokens[second])
    await scheduler.kill()
    front_end.link.finish(first)
    await until(lambda: call.finished)
    assert (call.finished[first].reason, call.finished[first].num_generated_tokens) == (FinishReason.STOP, 1)
    await scheduler.start()
    await _has(scheduler, "r")
    assert [choice.index for choice in scheduler.engine.submitted[0].choices] == [1]


async def test_a_request_ends_without_its_scheduler(make_scheduler, start_front_end):
    front_end = start_front_end(make_scheduler())
    call = front_end.submit(make_request("r"))
    front_end.link.end("r", Failure.DEADLINE_EXCEEDED, "too late")
    assert call.failed is None, "delivered in a turn of its own"
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.message) == (Failure.DEADLINE_EXCEEDED, "too late")


async def test_a_request_that_was_to_end_does_so_when_its_scheduler_is_lost(front_end, scheduler):
    call = front_end.submit(make_request("r"))
    await _has(scheduler, "r")
    scheduler.engine.end = lambda *arguments: None  # it dies before that
    front_end.link.end("r", Failure.CANCELLED, "its call has ended")
    await scheduler.kill()
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.message) == (Failure.CANCELLED, "its call has ended")


async def test_a_held_request_is_held_by_the_next_scheduler(front_end, scheduler):
    request = make_request("r", max_tokens=6)
    call = front_end.submit(request)
    await _step(scheduler, call, 2)
    front_end.link.hold("r")
    await until(lambda: scheduler.engine.held)
    await scheduler.kill()
    await scheduler.start()
    await until(lambda: scheduler.engine.held)
    front_end.link.unhold("r")
    await until(lambda: not scheduler.engine.held)
    await _step_to_end(scheduler, call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_commands_for_what_is_not_live_are_not_sent(front_end, scheduler):
    await until(lambda: scheduler.service.front_ends)
    front_end.link.hold("ghost")
    front_end.link.unhold("ghost")
    front_end.link.finish(2**31)
    front_end.link.end("ghost", Failure.CANCELLED, "")
    await _step_to_end(scheduler, front_end.submit(make_request("r")))
    assert scheduler.engine.calls == []


async def test_a_refusal_reaches_the_call(front_end, scheduler):
    scheduler.engine.refuses_new = True
    call = front_end.submit(make_request("r"))
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.retry_after_seconds, call.num_accepted) == (Failure.QUEUE_FULL, 0.5, 0)


async def test_a_request_without_choices_ends_with_its_acceptance(front_end):
    call = front_end.submit(make_request("r", choices=[]))
    await until(lambda: call.num_accepted)
    front_end.submit(make_request("r", choices=[]))


async def test_requests_fail_when_there_is_no_scheduler_for_too_long(make_scheduler, start_front_end):
    scheduler = make_scheduler()
    await scheduler.start()
    front_end = start_front_end(scheduler, grace_seconds=0.1)
    calls = [front_end.submit(make_request("a", max_tokens=9))]
    await _step(scheduler, calls[0], 1)
    await scheduler.kill()
    calls.append(front_end.submit(make_request("b")))
    await until(lambda: all(call.has_ended for call in calls))
    for call in calls:
        assert call.failed.failure is Failure.UNAVAILABLE and call.failed.message.startswith("no scheduler within 0.1 s: ")
    await scheduler.start()
    await _step_to_end(scheduler, front_end.submit(make_request("c")))


async def test_a_request_that_kills_schedulers_ends(front_end, scheduler):
    call = front_end.submit(make_request("r"))
    for _ in range(8):
        await _has(scheduler, "r")
        await scheduler.kill()
        await scheduler.start()
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.ABORTED
    assert call.failed.message == "8 schedulers in a row were lost with it, and it made no progress, limit 8"


async def test_a_request_that_makes_progress_may_lose_any_number_of_schedulers(front_end, scheduler):
    request = make_request("r", max_tokens=12)
    call = front_end.submit(request)
    for num_tokens in range(1, 12):
        await _step(scheduler, call, num_tokens)
        await scheduler.kill()
        await scheduler.start()
    await _step_to_end(scheduler, call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_another_scheduler_takes_over(make_scheduler, start_front_end):
    first, second = make_scheduler("first"), make_scheduler("second")
    await first.start()
    await second.start(stands_by=True)
    front_end = start_front_end(first, second)
    request = make_request("r", max_tokens=6)
    call = front_end.submit(request)
    await _step(first, call, 2)
    await first.kill()
    second.service.open()
    await _step_to_end(second, call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_a_farewell_sends_front_ends_to_the_next_scheduler(make_scheduler, start_front_end):
    first, second = make_scheduler("first"), make_scheduler("second")
    await first.start()
    await second.start()
    front_end = start_front_end(first, second)
    call = front_end.submit(make_request("r", max_tokens=6))
    await _step(first, call, 2)
    await first.leave()
    await first.start()  # it would take us again
    await _step_to_end(second, call)
    assert first.engine.submitted == []


async def test_a_scheduler_of_another_model_is_passed_over(make_scheduler, start_front_end):
    first, second = make_scheduler("first", model_fingerprint="another"), make_scheduler("second")
    await first.start()
    await second.start()
    await _step_to_end(second, start_front_end(first, second).submit(make_request("r")))
    assert first.engine.submitted == []


async def test_a_silent_scheduler_is_given_up(make_scheduler, start_front_end):
    first, second = make_scheduler("first", heartbeat_seconds=60.0), make_scheduler("second")
    await first.start()
    front_end = start_front_end(first, second, max_silence_seconds=0.1)
    call = front_end.submit(make_request("r"))
    await _has(first, "r")
    await second.start()
    await _step_to_end(second, call)
    assert call.finished


async def test_the_snapshot_is_that_of_the_scheduler(front_end, scheduler):
    worker = WorkerSnapshot("host:1", "i", 2, "n", 3, 4, 5, 6, PageCounts(1, 2, 3, 4))
    scheduler.engine.snapshot = EngineSnapshot((worker,), 1, 2, 3, 4, 5, 6, 7, 8.5, True)
    await until(lambda: front_end.link.snapshot == scheduler.engine.snapshot)
    await scheduler.kill()
    await until(lambda: not front_end.link.snapshot.healthy)
    assert front_end.link.snapshot.workers == () and front_end.link.snapshot.max_model_len == 7


async def test_the_scheduler_is_told_numbers_and_metrics(front_end, scheduler):
    front_end.numbers = FrontEndNumbers(1, 2, 3)
    await until(lambda: scheduler.service.front_ends and scheduler.service.front_ends[0].num_calls)
    view = scheduler.service.front_ends[0]
    assert (view.num_calls, view.num_held_back, view.num_unwritten_bytes, view.metrics) == (1, 2, 3, b"series 1\n")


async def test_a_new_scheduler_is_told_metrics_at_once(start_front_end, scheduler):
    start_front_end(scheduler, metrics_seconds=3600.0)
    for _ in range(2):
        await until(lambda: scheduler.service.front_ends and scheduler.service.front_ends[0].metrics)
        await scheduler.kill()
        await scheduler.start()


async def test_a_drain_of_the_operator_is_told(front_end, scheduler):
    await until(lambda: scheduler.service.front_ends)
    scheduler.service.drain()
    await until(lambda: front_end.num_drains)


async def test_a_front_end_that_drains_does_so_at_the_next_scheduler_too(front_end, scheduler):
    running = front_end.submit(make_request("a", max_tokens=6))
    await _step(scheduler, running, 2)
    front_end.link.drain()
    await scheduler.kill()
    late = front_end.submit(make_request("b"))
    await scheduler.start()
    await until(lambda: late.has_ended)
    assert late.failed.failure is Failure.UNAVAILABLE
    await _step_to_end(scheduler, running)
    assert running.finished


async def test_abort_finds_requests_of_every_front_end(scheduler, start_front_end):
    front_end, other = start_front_end(scheduler), start_front_end(scheduler, front_end_id="other")
    call = front_end.submit(make_request("r"))
    await _has(scheduler, "r")
    assert await other.link.abort("r")
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.CANCELLED
    assert not await other.link.abort("r")


async def test_abort_of_an_own_request_needs_no_scheduler(make_scheduler, start_front_end):
    front_end = start_front_end(make_scheduler())
    call = front_end.submit(make_request("r"))
    assert await front_end.link.abort("r")
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.CANCELLED


async def test_abort_waits_for_a_scheduler_but_not_for_ever(make_scheduler, start_front_end):
    scheduler = make_scheduler()
    front_end = start_front_end(scheduler, grace_seconds=0.05)
    with pytest.raises(TimeoutError, match=r"no scheduler within 0\.05 s"):
        await front_end.link.abort("r")
    patient = start_front_end(scheduler, front_end_id="patient")
    aborting = asyncio.create_task(patient.link.abort("r"))
    await scheduler.start()
    assert await aborting is False


async def test_a_takeover_by_another_front_end_ends_the_request_here(scheduler, start_front_end):
    front_end, other = start_front_end(scheduler), start_front_end(scheduler, front_end_id="other")
    call = front_end.submit(make_request("r"))
    await _has(scheduler, "r")
    other.submit(make_request("r", takes_over=True))
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.message) == (Failure.CANCELLED, "request taken over by a resume")


async def test_many_requests_change_over(front_end, scheduler):
    requests = [make_request(f"r{index}", prompt_token_ids=[1] * 2000, max_tokens=3) for index in range(200)]
    calls = [front_end.submit(request) for request in requests]
    await _has(scheduler, *(request.request_id for request in requests))
    scheduler.engine.step()
    await until(lambda: all(call.num_accepted for call in calls))
    await scheduler.kill()
    await scheduler.start()
    while not all(call.has_ended for call in calls):
        scheduler.engine.step()
        await asyncio.sleep(0.001)
    for request, call in zip(requests, calls, strict=True):
        assert list(call.tokens.values()) == [expected_tokens(request, 0)]
