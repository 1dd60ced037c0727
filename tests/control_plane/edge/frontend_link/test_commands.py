"""What is read out of commands, and what is refused."""

import math
from typing import Any

import pytest
from fakes.control_plane.submissions import make_choice, make_submission
from fakes.network.random_messages import changed
from hypothesis import given

from control_plane.edge.frontend_link.commands import SessionLimits, read_submissions
from control_plane.engine.ports import GenerationRequest, Quota, Tenant
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import pack_floats, pack_ids
from pypto_serving.worker.v1 import worker_pb2

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_LIMITS = SessionLimits(vocab_size=100, request_ids={"live"}, numbers={7})


def _read(*submissions: pb.Submission) -> list[GenerationRequest]:
    commands = pb.Commands(commands=[pb.Command(submit=submission) for submission in submissions])
    return read_submissions(commands, _LIMITS, now=50.0)


def _sampling(**fields: Any) -> worker_pb2.LaneSampling:
    return worker_pb2.LaneSampling(**{"top_p": 1.0, "repetition_penalty": 1.0, **fields})


def test_a_submission_is_read_field_by_field():
    choices = make_choice(1, index=0, resumed=(5, 6), resumed_numerics_id="numerics"), make_choice(2, index=3)
    given = {"min_tokens": 1, "end_token_ids": pack_ids([8]), "priority": -2, "cache_salt": "salt", "grammar": "g", "takes_over": True}
    [request] = _read(make_submission("r", *choices, age_us=2_500_000, was_accepted=True, **given))
    assert (request.request_id, request.resume_key, list(request.prompt_token_ids)) == ("r", b"key", [1, 2, 3])
    assert (request.max_tokens, request.min_tokens, request.end_token_ids, request.priority) == (4, 1, {8}, -2)
    assert (request.cache_salt, request.grammar, request.takes_over, request.was_accepted) == ("salt", "g", True, True)
    assert request.arrival_time == 47.5
    first, second = request.choices
    assert (first.index, first.number, list(first.resumed_token_ids), first.resumed_numerics_id) == (0, 1, [5, 6], "numerics")
    assert (second.index, second.number, list(second.resumed_token_ids), second.resumed_numerics_id) == (3, 2, [], None)


@pytest.mark.parametrize(("sent", "read"), [(TRACEPARENT, TRACEPARENT), ("", ""), ("nonsense", "")])
def test_a_trace_is_read_and_an_invalid_one_ignored(sent: str, read: str):
    assert _read(make_submission("r", traceparent=sent))[0].traceparent == read


def test_a_tenant_is_read_with_the_limits_that_it_has():
    tenants = (None, pb.Tenant(name="key-1"), pb.Tenant(name="acme", is_named=True, tokens_per_minute=2**40, max_requests=3))
    requests = _read(*(make_submission(f"r{index}", make_choice(index), tenant=tenant) for index, tenant in enumerate(tenants)))
    found = [request.tenant for request in requests]
    assert found == [None, Tenant("key-1", is_named=False), Tenant("acme", Quota(2**40, 3), is_named=True)]


def test_absent_prompt_logprobs_are_none_and_zero_is_zero():
    choices = make_choice(1), make_choice(2, index=1, sampling=_sampling(prompt_logprobs=0))
    [request] = _read(make_submission("r", *choices))
    assert [choice.sampling.prompt_logprobs for choice in request.choices] == [None, 0]


def test_biases_are_read_as_pairs():
    sampling = _sampling(bias_token_ids=pack_ids([3, 4]), bias_values=pack_floats([0.5, -1.0]))
    [request] = _read(make_submission("r", make_choice(sampling=sampling)))
    assert request.choices[0].sampling.logit_bias == ((3, 0.5), (4, -1.0))


def test_a_request_without_choices_is_one():
    [request] = read_submissions(pb.Commands(commands=[pb.Command(submit=make_submission("r", choices=[]))]), _LIMITS, 0.0)
    assert request.choices == []


@pytest.mark.parametrize(
    ("submission", "complaint"),
    [
        (make_submission(""), "submit.request_id"),
        (make_submission("x" * 1025), "submit.request_id"),
        (make_submission("live"), "submit.request_id: 'live' is live"),
        (make_submission("r", make_choice(7)), "submit.choices.number: 7 is live"),
        (make_submission("r", make_choice(1), make_choice(1, index=1)), "submit.choices.number: 1 is live"),
        (make_submission("r", make_choice(1, index=1), make_choice(2, index=1)), "submit.choices.index"),
        (make_submission(resume_key=b"x" * 1025), "submit.resume_key"),
        (make_submission(prompt_token_ids=b""), "submit.prompt_token_ids (length): 0"),
        (make_submission(prompt_token_ids=b"123"), "submit.prompt_token_ids: 3 bytes"),
        (make_submission(prompt_token_ids=pack_ids([100])), "submit.prompt_token_ids: 100 is not below 100"),
        (make_submission(end_token_ids=pack_ids([100])), "submit.end_token_ids"),
        (make_submission("r", make_choice(resumed=(1, 2, 3, 4))), "submit.choices.resumed_token_ids (length): 4"),
        (make_submission("r", make_choice(resumed=(100,))), "submit.choices.resumed_token_ids: 100"),
        (make_submission("r", make_choice(resumed_numerics_id="")), "submit.choices.resumed_numerics_id"),
        (make_submission(tenant=pb.Tenant()), "submit.tenant.name"),
        (make_submission(tenant=pb.Tenant(name="x" * 300)), "submit.tenant.name"),
        (make_submission(tenant=pb.Tenant(name="a", tokens_per_minute=0)), "submit.tenant.tokens_per_minute: 0"),
        (make_submission(tenant=pb.Tenant(name="a", max_requests=0)), "submit.tenant.max_requests: 0"),
        (make_submission("r", pb.Choice(number=1)), "submit.choices.sampling: missing"),
        (make_submission("r", make_choice(sampling=_sampling(temperature=math.nan))), "sampling.temperature"),
        (make_submission("r", make_choice(sampling=_sampling(repetition_penalty=0.0))), "sampling.repetition_penalty"),
        (make_submission("r", make_choice(sampling=_sampling(top_logprobs=101))), "sampling.top_logprobs"),
        (make_submission("r", make_choice(sampling=_sampling(bias_token_ids=pack_ids([1])))), "bias_values 0"),
    ],
)
def test_a_submission_that_cannot_be_is_refused(submission, complaint):
    with pytest.raises(FrameError) as caught:
        _read(submission)
    assert complaint in str(caught.value)


def test_two_submissions_of_one_id_in_one_frame_are_refused():
    with pytest.raises(FrameError, match=r"submit\.request_id: 'r' is live"):
        _read(make_submission("r", make_choice(1)), make_submission("r", make_choice(2)))


def test_an_end_without_a_reason_is_refused():
    for failure in (pb.FAILURE_UNSPECIFIED, 99):
        with pytest.raises(FrameError, match=r"end\.failure"):
            read_submissions(pb.Commands(commands=[pb.Command(end=pb.End(request_id="r", failure=failure))]), _LIMITS, 0.0)


def test_a_command_of_an_unknown_kind_is_skipped():
    unknown = pb.Command.FromString(b"\xfa\x01\x00")
    assert read_submissions(pb.Commands(commands=[unknown, pb.Command(submit=make_submission())]), _LIMITS, 0.0)[0].request_id == "r"


_FULL = make_submission(
    "r",
    make_choice(1, resumed=(1, 2), resumed_numerics_id="numerics"),
    make_choice(2, index=1, sampling=_sampling(bias_token_ids=pack_ids([3]), bias_values=pack_floats([0.5]), prompt_logprobs=2)),
    end_token_ids=pack_ids([9]),
)


@given(changed([pb.Commands(commands=[pb.Command(submit=_FULL), pb.Command(end=pb.End(request_id="r", failure=pb.FAILURE_ABORTED))])], {}))
def test_whatever_is_changed_is_either_sound_or_refused(commands):
    try:
        requests = read_submissions(commands, _LIMITS, 0.0)
    except FrameError:
        return
    for request in requests:
        assert request.request_id not in _LIMITS.request_ids and max(request.prompt_token_ids) < 100
        for choice in request.choices:
            assert choice.number not in _LIMITS.numbers and len(choice.resumed_token_ids) < max(1, request.max_tokens)
            assert all(token_id < 100 for token_id in choice.resumed_token_ids)
