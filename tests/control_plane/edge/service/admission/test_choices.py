"""Several choices of a request."""

import hashlib

from harness.request_admission import admit, prompt_ids, refusal

from pypto_serving.inference.v1 import inference_pb2 as pb


def spec(n: int, **fields: object) -> pb.GenerationSpec:
    return pb.GenerationSpec(token_ids=prompt_ids(1, 2), n=n, sampling=pb.SamplingParams(seed=5), **fields)


async def test_smp_02_choices_have_seeds_of_their_own_and_the_first_that_of_the_request() -> None:
    choices = (await admit(spec(64))).request.choices
    assert [choice.index for choice in choices] == list(range(64))
    assert choices[0].sampling == (await admit(spec(1))).request.choices[0].sampling
    seeds = [choice.sampling.seed for choice in choices]
    digest = hashlib.sha256((5).to_bytes(8, "little") + (3).to_bytes(4, "little")).digest()
    assert (len(set(seeds)), seeds[0], seeds[3]) == (64, 5, int.from_bytes(digest[:8], "little"))


async def test_choices_differ_in_nothing_else_and_share_no_text() -> None:
    admitted = await admit(spec(2))
    first, second = admitted.choices
    first.token_ids.append(0xC5)
    second.token_ids.extend(b"b")
    assert [delta.text for choice in admitted.choices if (delta := choice.take(1, 2))] == ["", "b"]
    assert [choice.resumed_token_ids for choice in admitted.request.choices] == [(), ()]


async def test_live_choices_have_numbers_of_their_own_by_which_output_finds_them() -> None:
    admitted = await admit(spec(64))
    assert [choice.number for choice in admitted.request.choices] == [choice.number for choice in admitted.choices]
    assert len({choice.number for choice in admitted.choices}) == 64


async def test_prompt_logprobs_are_asked_of_one_choice() -> None:
    choices = (await admit(spec(3, output=pb.OutputOptions(prompt_logprobs=2)))).request.choices
    assert [choice.sampling.prompt_logprobs for choice in choices] == [2, None, None]


async def test_val_13_a_huge_n_is_refused_before_anything_is_built() -> None:
    assert str(await refusal(spec(1_000_000))) == "n = 1000000, must be from 1 to 64"
    assert str(await refusal(spec(2**32 - 1))) == "n = 4294967295, must be from 1 to 64"
    assert str(await refusal(spec(0))) == "n = 0, must be from 1 to 64"


async def test_idn_04_best_of_does_not_exist() -> None:
    assert not [name for name in pb.GenerationSpec.DESCRIPTOR.fields_by_name if "best" in name]
