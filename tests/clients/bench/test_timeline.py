import grpc
import pytest

from clients.bench.timeline import Timeline, follow
from clients.errors import ServingError
from clients.results import Delta, Finished, FinishReason, Started, Timing, Usage

STARTED = Started("r", "fake", "f", 0, 4, ())


def delta(index, *token_ids):
    return Delta(0, "", token_ids, index, ())


def finished(num_tokens):
    return Finished(0, FinishReason.LENGTH, None, Usage(10, num_tokens, 0), Timing(0, 0, 0, 0))


async def scripted(clock, *script):
    for at, event in script:
        clock.now = at
        if isinstance(event, Exception):
            raise event
        yield event


class Clock:
    now = 1.0

    def __call__(self):
        return self.now


async def run(expected_tokens, *script):
    clock = Clock()
    return await follow(scripted(clock, *script), expected_tokens, clock)


async def test_times_of_a_request_follow_their_definitions():
    timeline = await run(4, (1.1, STARTED), (1.5, delta(0, 5)), (1.75, delta(1, 6, 7)), (2.25, delta(3, 8)), (2.5, finished(4)))
    assert timeline.first_token_seconds == 0.5
    assert timeline.end_to_end_seconds == 1.5
    assert timeline.gaps == [0.25, 0.0, 0.5]
    assert timeline.seconds_per_token == pytest.approx((1.5 - 0.5) / 3)
    assert (timeline.num_tokens, timeline.prompt_tokens, timeline.failure) == (4, 10, "")


async def test_single_token_has_no_time_per_token():
    timeline = await run(1, (1.5, delta(0, 5)), (1.5, finished(1)))
    assert timeline.seconds_per_token is None and timeline.gaps == []


async def test_error_is_a_failure_that_keeps_the_tokens_received():
    timeline = await run(4, (1.5, delta(0, 5)), (2.0, ServingError(grpc.StatusCode.ABORTED, "gone")))
    assert (timeline.failure, timeline.num_tokens, timeline.ended_at) == ("ABORTED", 1, 2.0)


async def test_fewer_tokens_than_asked_for_is_a_failure():
    timeline = await run(4, (1.5, delta(0, 5)), (2.0, finished(1)))
    assert timeline.failure == "4 tokens asked for, 1 received, 1 reported"


async def test_other_usage_than_received_is_a_failure():
    timeline = await run(1, (1.5, delta(0, 5)), (2.0, finished(2)))
    assert "1 received, 2 reported" in timeline.failure


def test_request_without_tokens_ends():
    assert Timeline(1.0, ended_at=2.0).end_to_end_seconds == 1.0
