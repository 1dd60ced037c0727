"""How requests end, with and without a scheduler."""

import asyncio

import pytest
from fakes.control_plane.front_end_calls import make_request
from harness.waiting import until

from control_plane.engine.ports import Failure, FinishReason

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_stop_string_ends_a_choice(front_end, scheduler):
    call = front_end.submit(make_request("r", max_tokens=100))
    await scheduler.step(call, 2)
    [number] = call.tokens
    front_end.link.finish(number)
    front_end.link.finish(number)
    await until(lambda: call.has_ended)
    assert call.finished[number].reason is FinishReason.STOP and call.finished[number].end_token_id is None
    assert scheduler.engine.calls == [("finish", number)]


async def test_a_choice_that_was_to_finish_does_so_without_its_scheduler(front_end, scheduler):
    call = front_end.submit(make_request("r", 2, max_tokens=100))
    await scheduler.has("r")
    first, second = call.tokens
    scheduler.engine.step()
    await until(lambda: call.tokens[second])
    await scheduler.kill()
    front_end.link.finish(first)
    await until(lambda: call.finished)
    assert (call.finished[first].reason, call.finished[first].num_generated_tokens) == (FinishReason.STOP, 1)
    await scheduler.start()
    await scheduler.has("r")
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
    await scheduler.has("r")
    scheduler.engine.end = lambda *arguments: None  # it dies before that
    front_end.link.end("r", Failure.CANCELLED, "its call has ended")
    await scheduler.kill()
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.message) == (Failure.CANCELLED, "its call has ended")


async def test_a_refusal_reaches_the_call(front_end, scheduler):
    scheduler.engine.refuses_new = True
    call = front_end.submit(make_request("r"))
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.retry_after_seconds, call.num_accepted) == (Failure.QUEUE_FULL, 0.5, 0)


async def test_a_request_without_choices_ends_with_its_acceptance(front_end):
    call = front_end.submit(make_request("r", choices=[]))
    await until(lambda: call.num_accepted)
    front_end.submit(make_request("r", choices=[]))


async def test_abort_finds_requests_of_every_front_end(scheduler, start_front_end):
    front_end, other = start_front_end(scheduler), start_front_end(scheduler, front_end_id="other")
    call = front_end.submit(make_request("r"))
    await scheduler.has("r")
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
    await scheduler.has("r")
    other.submit(make_request("r", takes_over=True))
    await until(lambda: call.has_ended)
    assert (call.failed.failure, call.failed.message) == (Failure.CANCELLED, "request taken over by a resume")
