"""A front end's calls over the loss of schedulers: they see one request, from its acceptance to its end."""

import asyncio

from fakes.control_plane.front_end_calls import make_request
from fakes.control_plane.session_engine import NUMERICS_ID, expected_tokens, logprob_of
from harness.waiting import until

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Failure, FinishReason

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_request_runs_to_its_end(front_end, scheduler):
    request = make_request("r", 2)
    call = front_end.submit(request)
    await scheduler.has("r")
    await scheduler.step_to_end(call)
    assert list(call.tokens.values()) == [expected_tokens(request, choice) for choice in (0, 1)]
    assert list(call.numerics.values()) == [[NUMERICS_ID], [NUMERICS_ID]]
    assert {one.reason for one in call.finished.values()} == {FinishReason.LENGTH}
    assert next(iter(call.finished.values())).queue_seconds == 0.25


async def test_an_end_token_is_told(front_end, scheduler):
    token_id = expected_tokens(make_request("r"), 0)[1]
    request = make_request("r", end_token_ids=frozenset([token_id]))
    call = front_end.submit(request)
    await scheduler.step_to_end(call)
    [finished] = call.finished.values()
    assert (finished.reason, finished.end_token_id, finished.num_generated_tokens) == (FinishReason.STOP, token_id, 2)


async def test_log_probabilities_arrive_bit_for_bit(front_end, scheduler):
    request = make_request("r", sampling=SamplingParams(logprobs=True, top_logprobs=2, prompt_logprobs=3))
    call = front_end.submit(request)
    await scheduler.step_to_end(call)
    [number] = call.tokens
    assert call.logprobs[number] == [logprob_of(token_id, 2) for token_id in call.tokens[number]]
    [entries] = call.prompt_logprobs
    assert [entry.token_id for entry in entries] == [1, 2, 3]
    assert entries[0].logprob is None and entries[1:] == [logprob_of(2, 3), logprob_of(3, 3)]


async def test_a_request_survives_its_scheduler(front_end, scheduler):
    request = make_request("r", max_tokens=8, traceparent=TRACEPARENT)
    call = front_end.submit(request)
    await scheduler.step(call, 3)
    await scheduler.kill()
    await scheduler.start()
    await scheduler.step_to_end(call)
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
    await scheduler.has("r")
    await scheduler.kill()
    await scheduler.start()
    await scheduler.step_to_end(call)
    [resubmitted] = scheduler.engine.submitted
    assert not resubmitted.was_accepted and not resubmitted.takes_over and resubmitted.choices[0].resumed_numerics_id is None


async def test_tokens_that_were_lost_on_the_way_come_once(front_end, scheduler):
    request = make_request("r", max_tokens=8)
    call = front_end.submit(request)
    await scheduler.step(call, 2)
    scheduler.engine.step()
    await scheduler.kill()
    await scheduler.start()
    await scheduler.step_to_end(call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_choices_that_have_ended_are_not_submitted_again(front_end, scheduler):
    tokens = [expected_tokens(make_request("r", 2, max_tokens=8), choice) for choice in (0, 1)]
    request = make_request("r", 2, max_tokens=8, end_token_ids=frozenset([tokens[0][2]]) - set(tokens[1]))
    call = front_end.submit(request)
    await scheduler.has("r")
    while len(call.finished) < 1:
        scheduler.engine.step()
        await asyncio.sleep(0.001)
    await scheduler.kill()
    await scheduler.start()
    await scheduler.step_to_end(call)
    assert [choice.index for choice in scheduler.engine.submitted[0].choices] == [1]
    assert list(call.tokens.values()) == [tokens[0][:3], tokens[1]]


async def test_prompt_log_probabilities_come_once(front_end, scheduler):
    call = front_end.submit(make_request("r", max_tokens=6, sampling=SamplingParams(prompt_logprobs=1)))
    await scheduler.step(call, 1)
    await scheduler.kill()
    await scheduler.start()
    await scheduler.step_to_end(call)
    assert len(call.prompt_logprobs) == 1
    assert scheduler.engine.submitted[0].choices[0].sampling.prompt_logprobs is None


async def test_a_held_request_is_held_by_the_next_scheduler(front_end, scheduler):
    request = make_request("r", max_tokens=6)
    call = front_end.submit(request)
    await scheduler.step(call, 2)
    front_end.link.hold("r")
    await until(lambda: scheduler.engine.held)
    await scheduler.kill()
    await scheduler.start()
    await until(lambda: scheduler.engine.held)
    front_end.link.unhold("r")
    await until(lambda: not scheduler.engine.held)
    await scheduler.step_to_end(call)
    assert list(call.tokens.values()) == [expected_tokens(request, 0)]


async def test_commands_for_what_is_not_live_are_not_sent(front_end, scheduler):
    await until(lambda: scheduler.service.front_ends)
    front_end.link.hold("ghost")
    front_end.link.unhold("ghost")
    front_end.link.finish(2**31)
    front_end.link.end("ghost", Failure.CANCELLED, "")
    await scheduler.step_to_end(front_end.submit(make_request("r")))
    assert scheduler.engine.calls == []
