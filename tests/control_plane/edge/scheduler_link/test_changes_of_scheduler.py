"""Schedulers that come, go and take over, and requests that lose them."""

import asyncio

import pytest
from fakes.control_plane.front_end_calls import make_request
from fakes.control_plane.session_engine import expected_tokens
from harness.waiting import until

from control_plane.core.step import ids
from control_plane.engine.ports import Failure, Outputs

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_requests_fail_when_there_is_no_scheduler_for_too_long(make_scheduler, start_front_end):
    scheduler = make_scheduler()
    await scheduler.start()
    front_end = start_front_end(scheduler, grace_seconds=0.1)
    calls = [front_end.submit(make_request("a", max_tokens=9))]
    await scheduler.step(calls[0], 1)
    await scheduler.kill()
    calls.append(front_end.submit(make_request("b")))
    await until(lambda: all(call.has_ended for call in calls))
    for call in calls:
        assert call.failed.failure is Failure.UNAVAILABLE and call.failed.message.startswith("no scheduler within 0.1 s: ")
    await scheduler.start()
    await scheduler.step_to_end(front_end.submit(make_request("c")))


async def _run_without_progress(scheduler, call, witness):
    """Let a request run, as another one does that gets a token."""
    await scheduler.has(call.request.request_id, witness.request.request_id)
    scheduler.engine.start(call.request.request_id)
    [tokens] = witness.tokens.values()
    num_tokens = len(tokens)
    scheduler.engine.step(lambda request_id: request_id == witness.request.request_id)
    await until(lambda: len(tokens) > num_tokens)


@pytest.fixture
def call(front_end):
    return front_end.submit(make_request("r"))


@pytest.fixture
def witness(front_end):
    return front_end.submit(make_request("witness", max_tokens=100))


async def test_a_request_that_kills_schedulers_ends(scheduler, call, witness):
    for _ in range(8):
        await _run_without_progress(scheduler, call, witness)
        await scheduler.kill()
        await scheduler.start()
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.ABORTED
    assert call.failed.message == "8 schedulers in a row were lost with it, and it made no progress, limit 8"
    await scheduler.step_to_end(witness)
    assert witness.finished


async def test_a_request_that_kills_schedulers_as_they_take_it_in_ends(front_end, scheduler):
    scheduler.engine.withholds_acceptance = True
    call = front_end.submit(make_request("r"))
    for _ in range(8):
        await scheduler.has("r")
        await scheduler.kill()
        await scheduler.start(withholds_acceptance=True)
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.ABORTED


async def test_a_request_that_only_waits_may_lose_any_number_of_schedulers(scheduler, call, witness):
    for _ in range(12):
        await scheduler.has("r")
        await scheduler.step(witness, len(*witness.tokens.values()) + 1, only=True)
        await scheduler.kill()
        await scheduler.start()
    await scheduler.step_to_end(call)
    assert call.finished


async def test_a_link_that_breaks_is_nobodys_fault(scheduler, call, witness):
    for _ in range(12):
        await _run_without_progress(scheduler, call, witness)
        await scheduler.cut()
    await scheduler.step_to_end(call)
    assert call.finished


async def test_schedulers_that_go_in_good_order_are_not_counted(scheduler, call, witness):
    for _ in range(12):
        await _run_without_progress(scheduler, call, witness)
        await scheduler.leave()
        await scheduler.start()
    await scheduler.step_to_end(call)
    assert call.finished


async def test_a_request_whose_output_breaks_each_session_ends(scheduler, call, witness):
    for _ in range(8):
        await _run_without_progress(scheduler, call, witness)
        session = scheduler.engine.live["r"]
        session.publish(Outputs(numbers=ids([2**31]), token_ids=ids([1])))
        await until(lambda session=session: session not in scheduler.engine.live.values())
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.ABORTED


async def test_requests_have_the_whole_grace_after_the_process_stood_still(make_scheduler, start_front_end):
    clock = [0.0]
    front_end = start_front_end(make_scheduler(), active_clock=lambda: clock[0], grace_seconds=0.02)
    call = front_end.submit(make_request("r"))
    await asyncio.sleep(0.2)
    assert not call.has_ended
    clock[0] = 0.02
    await until(lambda: call.has_ended)
    assert call.failed.failure is Failure.UNAVAILABLE


async def test_a_request_that_makes_progress_may_lose_any_number_of_schedulers(front_end, scheduler):
    request = make_request("r", max_tokens=12)
    call = front_end.submit(request)
    for num_tokens in range(1, 12):
        await scheduler.step(call, num_tokens)
        await scheduler.kill()
        await scheduler.start()
    await scheduler.step_to_end(call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_another_scheduler_takes_over(make_scheduler, start_front_end):
    first, second = make_scheduler("first"), make_scheduler("second")
    await first.start()
    await second.start(stands_by=True)
    front_end = start_front_end(first, second)
    request = make_request("r", max_tokens=6)
    call = front_end.submit(request)
    await first.step(call, 2)
    await first.kill()
    second.service.open()
    await second.step_to_end(call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_a_farewell_sends_front_ends_to_the_next_scheduler(make_scheduler, start_front_end):
    first, second = make_scheduler("first"), make_scheduler("second")
    await first.start()
    await second.start()
    front_end = start_front_end(first, second)
    call = front_end.submit(make_request("r", max_tokens=6))
    await first.step(call, 2)
    await first.leave()
    await first.start()  # it would take us again
    await second.step_to_end(call)
    assert first.engine.submitted == []


async def test_a_scheduler_of_another_model_is_passed_over(make_scheduler, start_front_end):
    first, second = make_scheduler("first", model_fingerprint="another"), make_scheduler("second")
    await first.start()
    await second.start()
    await second.step_to_end(start_front_end(first, second).submit(make_request("r")))
    assert first.engine.submitted == []


async def test_a_silent_scheduler_is_given_up(make_scheduler, start_front_end):
    first, second = make_scheduler("first", heartbeat_seconds=60.0), make_scheduler("second")
    await first.start()
    front_end = start_front_end(first, second, max_silence_seconds=0.1)
    call = front_end.submit(make_request("r"))
    await first.has("r")
    await second.start()
    await second.step_to_end(call)
    assert call.finished


async def test_many_requests_change_over(front_end, scheduler):
    requests = [make_request(f"r{index}", prompt_token_ids=[1] * 2000, max_tokens=3) for index in range(200)]
    calls = [front_end.submit(request) for request in requests]
    await scheduler.has(*(request.request_id for request in requests))
    scheduler.engine.step()
    await until(lambda: all(call.num_accepted for call in calls))
    await scheduler.kill()
    await scheduler.start()
    while not all(call.has_ended for call in calls):
        scheduler.engine.step()
        await asyncio.sleep(0.001)
    for request, call in zip(requests, calls, strict=True):
        assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_requests_wait_for_the_first_scheduler(make_scheduler, start_front_end):
    scheduler = make_scheduler()
    front_end = start_front_end(scheduler)
    call = front_end.submit(make_request("r"))
    await scheduler.start()
    await scheduler.step_to_end(call)
    assert call.finished
