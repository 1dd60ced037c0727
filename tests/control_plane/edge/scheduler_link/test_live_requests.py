"""What is kept of requests from one scheduler to the next."""

from typing import Any

import pytest
from fakes.control_plane.front_end_calls import make_request

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import ids
from control_plane.edge.frontend_link.commands import SessionLimits, read_submissions
from control_plane.edge.scheduler_link.commands import submission
from control_plane.edge.scheduler_link.live_requests import LiveRequests
from control_plane.edge.scheduler_link.stream import LossCause
from control_plane.engine.ports import ChoiceSpec, Failure, FinishReason, GenerationRequest, Outputs, RequestFailed, SequenceFinished
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError


def test_a_prompt_without_generated_tokens_is_submitted_again():
    requests = LiveRequests(max_losses=8)
    requests.add(make_request(max_tokens=0, arrival_time=100.0, sampling=SamplingParams(prompt_logprobs=1)), now=100.0)
    requests.pop_unsent()
    _lose(requests, 101.0)
    again = requests.pop_unsent()
    assert again and not requests.pop_ended().finished
    commands = pb.Commands(commands=[submission(again, now=102.0)])
    (read,) = read_submissions(commands, SessionLimits(100, (), ()), now=202.0)
    assert (read.max_tokens, read.arrival_time, read.choices[0].sampling.prompt_logprobs) == (0, 200.0, 1)


def _lose(requests: LiveRequests, now: float) -> None:
    requests.lose_session(LossCause.BROKEN, now, waiting_since=now)


def _running(num_choices: int = 1, **fields: Any) -> tuple[LiveRequests, GenerationRequest]:
    """One request that the scheduler has accepted, and one that it does not have yet."""
    requests, request = LiveRequests(max_losses=8), make_request("running", num_choices, **fields)
    requests.add(request, now=100.0)
    requests.pop_unsent()
    requests.take_in(Outputs(accepted=["running"]), now=100.0)
    requests.add(make_request("unsent", choices=[ChoiceSpec(0, 2**31, SamplingParams())]), now=100.0)
    return requests, request


def _tokens(*numbers: int) -> dict[str, Any]:
    return {"numbers": ids(numbers), "token_ids": ids([7] * len(numbers))}


def _finished(number: int) -> SequenceFinished:
    return SequenceFinished(number, FinishReason.LENGTH, None, 3, 4, 0, 0, 0.25, 0.5, 1.0)


_FAILED = RequestFailed("running", Failure.INTERNAL, "")


@pytest.mark.parametrize(
    "outputs",
    [
        lambda number: Outputs(accepted=["unsent"]),
        lambda number: Outputs(accepted=["ghost"]),
        lambda number: Outputs(accepted=["running", "running"]),
        lambda number: Outputs(numerics=[(2**31, "n")]),
        lambda number: Outputs(**_tokens(number, 2**31)),
        lambda number: Outputs(**_tokens(number, 2**32 - 1)),
        lambda number: Outputs(finished=[_finished(2**31)], **_tokens(number)),
        lambda number: Outputs(finished=[_finished(number)] * 2, **_tokens(number)),
        lambda number: Outputs(failed=[_FAILED] * 2, **_tokens(number)),
        lambda number: Outputs(failed=[RequestFailed("unsent", Failure.INTERNAL, "")], **_tokens(number)),
        lambda number: Outputs(finished=[_finished(number)], failed=[_FAILED]),
        lambda number: Outputs(started=["unsent"]),
        lambda number: Outputs(started=["ghost"], **_tokens(number)),
    ],
)
def test_what_is_not_live_is_refused_without_any_effect(outputs):
    requests, request = _running()
    number = request.choices[0].number
    with pytest.raises(FrameError):
        requests.take_in(outputs(number), now=101.0)
    _lose(requests, 101.0)
    again = requests.pop_unsent()
    assert again and list(again.choices[number].token_ids) == []


def test_a_pass_may_bring_acceptance_and_tokens_at_once():
    requests, request = LiveRequests(max_losses=8), make_request("r")
    requests.add(request, now=100.0)
    requests.pop_unsent()
    number = request.choices[0].number
    brought = requests.take_in(Outputs(accepted=["r"], numerics=[(number, "n")], finished=[_finished(number)], **_tokens(number)), 101.0)
    assert (brought.accepted, list(brought.token_ids), len(brought.finished)) == (["r"], [7], 1) and not requests


def test_a_request_without_choices_is_over_when_it_is_accepted():
    requests = LiveRequests(max_losses=8)
    requests.add(make_request("r", choices=[]), now=100.0)
    requests.pop_unsent()
    assert requests.take_in(Outputs(accepted=["r"]), now=100.0).accepted == ["r"] and not requests


def test_tokens_need_an_acceptance_in_every_session():
    requests, request = _running()
    number = request.choices[0].number
    _lose(requests, 101.0)
    requests.pop_unsent()
    with pytest.raises(FrameError, match=rf"choice {number} is not live"):
        requests.take_in(Outputs(**_tokens(number)), now=102.0)
    assert requests.take_in(Outputs(accepted=["running"], **_tokens(number)), now=102.0).accepted == []


def test_an_end_token_that_came_without_a_word_ends_the_choice():
    requests, request = _running(end_token_ids=frozenset([7]), max_tokens=9)
    requests.take_in(Outputs(**_tokens(request.choices[0].number)), now=101.0)
    _lose(requests, 103.0)
    [finished] = requests.pop_ended().finished
    assert (finished.reason, finished.end_token_id, finished.num_generated_tokens) == (FinishReason.STOP, 7, 1)


def test_an_end_token_before_min_tokens_ends_nothing():
    requests, request = _running(end_token_ids=frozenset([7]), min_tokens=1, max_tokens=9)
    requests.take_in(Outputs(**_tokens(request.choices[0].number)), now=101.0)
    _lose(requests, 103.0)
    assert not requests.pop_ended().finished and len(requests) == 2


def test_the_last_token_that_came_without_a_word_ends_the_choice():
    requests, request = _running(max_tokens=2)
    requests.take_in(Outputs(**_tokens(*[request.choices[0].number] * 2)), now=101.0)
    _lose(requests, 103.0)
    assert requests.pop_ended().finished[0].reason is FinishReason.LENGTH


def test_times_and_readmissions_are_those_of_the_whole_request():
    requests, request = _running(max_tokens=9, arrival_time=100.0)
    number = request.choices[0].number
    requests.take_in(Outputs(numerics=[(number, "n")], **_tokens(number)), now=100.125)
    _lose(requests, 103.0)
    requests.pop_unsent()
    brought = requests.take_in(Outputs(accepted=["running"], finished=[_finished(number)]), now=104.0)
    [finished] = brought.finished
    assert (finished.num_readmissions, finished.queue_seconds, finished.first_token_seconds, finished.total_seconds) == (
        1,
        0.125,
        0.125,
        1.0,
    )


def test_a_held_request_may_lose_any_number_of_schedulers():
    requests, _ = _running()
    requests.hold("running", True)
    for number in range(20):
        _lose(requests, 101.0)
        requests.begin_session(f"scheduler {number}")
        while requests.pop_unsent():
            pass
    assert "running" in requests and "unsent" not in requests


def test_what_was_never_sent_is_not_blamed_for_losses():
    requests = LiveRequests(max_losses=2)
    requests.add(make_request("r"), now=100.0)
    for number in range(9):
        requests.begin_session(f"scheduler {number}")
        _lose(requests, 101.0)
    requests.fail_overdue(now=129.0, grace_seconds=30.0, reason="")
    assert "r" in requests
    requests.fail_overdue(now=130.0, grace_seconds=30.0, reason="nobody there")
    assert requests.pop_ended().failed == [RequestFailed("r", Failure.UNAVAILABLE, "no scheduler within 30 s: nobody there")]
