"""What a client brings along to continue a request."""

import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from fakes.control_plane.scripted_engine import MAX_MODEL_LEN, VOCAB_SIZE, served_model
from fakes.text.tokenizers import BOS, EOS
from harness.request_admission import admit, refusal

from control_plane.edge.service.admission import resume
from control_plane.engine.ports import FinishReason
from pypto_serving.inference.v1 import inference_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LIMITED = served_model(max_positions=MAX_MODEL_LEN)


@pytest.fixture
async def started() -> AsyncIterator[pb.Started]:
    yield (await admit(pb.GenerationSpec(text="Hi", stopping=pb.StoppingParams(max_tokens=5)))).started


def resumed(started: pb.Started, **changes: object) -> pb.GenerationSpec:
    fields = {"effective": started.effective, "prompt_token_ids": [BOS, *b"Hi"], "model_fingerprint": "f1"} | changes
    return pb.GenerationSpec(resume=pb.Resume(**fields))


async def test_a_resume_takes_its_parameters_along(started: pb.Started) -> None:
    choices = [pb.ResumedChoice(index=0, token_ids=[1, 2])]
    admitted = await admit(resumed(started, choices=choices, key=b"k"))
    assert admitted.started.effective == started.effective
    assert (admitted.started.resume_key, admitted.request.takes_over) == (b"k", True)
    assert list(admitted.request.choices[0].resumed_token_ids) == [1, 2]


@pytest.mark.parametrize("limit", [7, 2])
async def test_a_resume_that_has_become_too_long_may_come_back(started: pb.Started, limit: int) -> None:
    error = await refusal(resumed(started), max_model_len=limit)
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert str(error).startswith(f"resume: the prompt has 3 tokens, max_tokens is 5, and a request may have {limit} now")
    await admit(resumed(started), max_model_len=8)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"model_fingerprint": "f2"}, grpc.StatusCode.FAILED_PRECONDITION, "resume.model_fingerprint 'f2' is of another model"),
        ({"prompt_token_ids": []}, INVALID, "resume.prompt_token_ids has 0 tokens"),
        ({"prompt_token_ids": [VOCAB_SIZE]}, INVALID, "resume.prompt_token_ids: token id"),
        ({"prompt_token_ids": [1] * 65}, INVALID, "resume.prompt_token_ids has 65 tokens, may have at most 64"),
        ({"choices": [pb.ResumedChoice(token_ids=[VOCAB_SIZE] * 65)]}, INVALID, "resume.choices[0].token_ids has 65 tokens"),
        ({"key": b"k" * 65}, INVALID, "resume.key has 65 bytes"),
        ({"effective": pb.EffectiveParameters(n=1)}, INVALID, "resume.effective.sampling.seed is absent"),
        ({"choices": [pb.ResumedChoice(token_ids=[VOCAB_SIZE])]}, INVALID, "resume.choices[0].token_ids: token id"),
        ({"choices": [pb.ResumedChoice(token_ids=[1] * 6)]}, INVALID, "resume.choices[0].token_ids has 6 tokens, may have at most"),
        ({"choices": [pb.ResumedChoice(index=1)]}, INVALID, "resume.choices[0].index = 1, must be below n = 1"),
        ({"choices": [pb.ResumedChoice()] * 2}, INVALID, "resume.choices has 2 entries, may have at most 1"),
        ({"choices": [pb.ResumedChoice(finished=True)]}, INVALID, "resume.choices: every choice is finished"),
        ({"choices": [pb.ResumedChoice(numerics_id="x" * 257)]}, INVALID, "resume.choices[0].numerics_id must be at most 256 printable"),
        ({"choices": [pb.ResumedChoice(numerics_id="a\nb")]}, INVALID, "resume.choices[0].numerics_id"),
    ],
)
async def test_a_resume_that_makes_no_sense_is_refused(
    started: pb.Started, changes: dict[str, object], code: grpc.StatusCode, message: str
) -> None:
    error = await refusal(resumed(started, **changes), LIMITED)
    assert (error.code, str(error)[: len(message)]) == (code, message)


@pytest.mark.parametrize(
    "field", [{"text": "x"}, {"sampling": pb.SamplingParams()}, {"stopping": pb.StoppingParams()}, {"output": pb.OutputOptions()}, {"n": 1}]
)
async def test_a_resume_stands_in_place_of_other_fields(started: pb.Started, field: dict[str, Any]) -> None:
    spec = resumed(started)
    spec.MergeFrom(pb.GenerationSpec(**field))
    assert str(await refusal(spec)) == f"{next(iter(field))} is set beside resume, must be absent"


async def test_the_ranges_hold_for_a_resume_too(started: pb.Started) -> None:
    started.effective.sampling.temperature = math.nan
    assert str(await refusal(resumed(started))).startswith("resume.effective.sampling.temperature = nan")
    started.effective.n = 1_000_000
    started.effective.sampling.temperature = 1
    assert str(await refusal(resumed(started))).startswith("resume.effective.n = 1000000, must be from 1 to 64")


@pytest.mark.parametrize(("field", "value", "limit"), [("max_tokens", 62, "61"), ("min_tokens", 6, "max_tokens = 5")])
async def test_lengths_of_a_resume_are_called_by_their_place_in_it(started: pb.Started, field: str, value: int, limit: str) -> None:
    setattr(started.effective.stopping, field, value)
    assert str(await refusal(resumed(started), LIMITED)).startswith(f"resume.effective.stopping.{field} = {value}, must be at most {limit}")


async def test_choices_have_so_many_tokens_together(started: pb.Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "MAX_RESUMED_TOKENS", 5)
    started.effective.n = 2
    choices = [pb.ResumedChoice(index=0, token_ids=[1] * 3), pb.ResumedChoice(index=1, token_ids=[1] * 3)]
    assert str(await refusal(resumed(started, choices=choices))) == "resume.choices together has 6 tokens, may have at most 5"


async def test_a_resume_leaves_out_what_has_finished(started: pb.Started) -> None:
    started.effective.n = 4
    choices = [pb.ResumedChoice(index=2, token_ids=[7], numerics_id="num"), pb.ResumedChoice(index=0, token_ids=[1, 2], finished=True)]
    admitted = await admit(resumed(started, choices=choices))
    going_on = [(choice.index, list(choice.resumed_token_ids), choice.resumed_numerics_id) for choice in admitted.request.choices]
    assert going_on == [(1, [], None), (2, [7], "num"), (3, [], None)]


async def test_a_choice_that_brings_its_ending_along_is_finished_here_and_not_given_to_the_engine(started: pb.Started) -> None:
    started.effective.n = 3
    started.effective.output.prompt_logprobs = 2
    choices = [pb.ResumedChoice(index=0, token_ids=[1, EOS, 2]), pb.ResumedChoice(index=2, token_ids=[1] * 5)]
    admitted = await admit(resumed(started, choices=choices))
    (going_on,) = admitted.request.choices
    assert (going_on.index, going_on.number, going_on.sampling.prompt_logprobs) == (1, admitted.choices[1].number, 2)
    ends = [(end.finished, end.stop_string) for choice in admitted.choices if (end := choice.take_end())]
    assert [(end.reason, end.end_token_id, end.num_generated_tokens, stop) for end, stop in ends] == [
        (FinishReason.STOP, EOS, 2, None),
        (FinishReason.LENGTH, None, 5, None),
    ]
    assert {(end.num_prompt_tokens, end.num_cached_tokens, end.first_token_seconds) for end, _ in ends} == {(3, 0, 0.0)}


async def test_a_resume_whose_choices_have_all_ended_has_none_for_the_engine(started: pb.Started) -> None:
    started.effective.stopping.stop[:] = ["bc"]
    admitted = await admit(resumed(started, choices=[pb.ResumedChoice(index=0, token_ids=[*b"abcd"])]))
    end = admitted.choices[0].take_end()
    assert end is not None and (end.stop_string, end.finished.num_generated_tokens) == ("bc", 3)
    assert (admitted.request.choices, admitted.request.takes_over) == ([], True)


async def test_a_resumed_choice_keeps_its_seed(started: pb.Started) -> None:
    started.effective.n = 3
    fresh = (await admit(resumed(started))).request.choices
    (later,) = (await admit(resumed(started, choices=[pb.ResumedChoice(index=index, finished=True) for index in (0, 1)]))).request.choices
    assert (later.index, later.sampling.seed) == (2, fresh[2].sampling.seed)


async def test_a_choice_is_resumed_once(started: pb.Started) -> None:
    started.effective.n = 2
    error = await refusal(resumed(started, choices=[pb.ResumedChoice(index=1)] * 2))
    assert str(error) == "resume.choices[1].index = 1 is also that of resume.choices[0]"


async def test_a_constraint_is_given_again_beside_a_resume(started: pb.Started) -> None:
    spec = resumed(started, choices=[pb.ResumedChoice(index=0, token_ids=[*b"a"])])
    spec.constraint.regex = "ab"
    request = (await admit(spec)).request
    assert request.grammar
    assert [list(choice.resumed_token_ids) for choice in request.choices] == [[*b"a"]]
    spec.resume.choices[0].token_ids[:] = b"b"
    assert str(await refusal(spec)).startswith("choice 0: resumed tokens do not fit the constraint: token id 98 is not allowed")
    started.effective.stopping.ignore_eos = True
    error = await refusal(pb.GenerationSpec(resume=resumed(started).resume, constraint=spec.constraint))
    assert str(error).startswith("resume.effective.stopping.ignore_eos is set beside constraint")
