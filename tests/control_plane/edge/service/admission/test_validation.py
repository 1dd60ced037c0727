"""The cases of validation that go through the stub, up to the engine."""

import grpc
import pytest
from fakes.control_plane.scripted_engine import VOCAB_SIZE, scripted_control_plane, served_model
from fakes.text.tokenizers import BOS, EOS, EOT, byte_tokenizer
from harness.request_admission import admit, prompt_ids, refusal

from control_plane.edge.service.admission.parameters import _require
from control_plane.edge.service.errors import InvalidArgument
from pypto_serving.inference.v1 import inference_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("token_id", [VOCAB_SIZE, 2**31 - 1, 2**32 - 1])
async def test_val_01_ids_above_the_vocabulary_are_named(token_id: int) -> None:
    error = await refusal(pb.GenerationSpec(token_ids=prompt_ids(5, token_id)))
    assert (error.code, f"token id {token_id} at position 1" in str(error)) == (INVALID, True)
    with pytest.raises(ValueError, match="out of range"):
        prompt_ids(5, 2**63 - 1)


def test_val_02_the_wire_has_no_negative_ids() -> None:
    for make in (
        lambda: prompt_ids(5, -1, 7),
        lambda: pb.StoppingParams(stop_token_ids=[-1]),
        lambda: pb.SamplingParams(logit_bias={-1: 5.0}),
    ):
        with pytest.raises(ValueError, match="out of range"):
            make()


async def test_val_03_ids_between_tokenizer_and_embedding_are_accepted_and_have_no_text() -> None:
    spec = pb.GenerationSpec(token_ids=prompt_ids(5, 300), stopping=pb.StoppingParams(stop_token_ids=[301]))
    request = (await admit(spec)).request
    assert (list(request.prompt_token_ids), 301 in request.end_token_ids) == ([5, 300], True)
    async with scripted_control_plane(script=[ord("a"), 300, ord("b"), EOS]) as plane:
        response = await plane.generate(text="x")
        assert (response.choices[0].text, response.usage.completion_tokens) == ("ab", 4)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (pb.SamplingParams(logit_bias={VOCAB_SIZE + 1: -100.0}), f"sampling.logit_bias: token id {VOCAB_SIZE + 1}"),
        (pb.SamplingParams(logit_bias={1: 1e9}), "sampling.logit_bias[1] = 1e+09, must be in [-100, 100]"),
    ],
)
async def test_val_04_biases_of_unknown_ids_and_of_any_size_are_refused(sampling: pb.SamplingParams, message: str) -> None:
    assert str(await refusal(pb.GenerationSpec(text="x", sampling=sampling))).startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stopping": pb.StoppingParams(stop_token_ids=[1] * 10_000)}, "stopping.stop_token_ids has 10000 entries, may have at most 256"),
        (
            {"sampling": pb.SamplingParams(logit_bias=dict.fromkeys(range(5000), 0.0))},
            "sampling.logit_bias has 5000 entries, may have at most",
        ),
        ({"stopping": pb.StoppingParams(stop=["x"] * 1000)}, "stopping.stop has 1000 entries, may have at most 64"),
        ({"stopping": pb.StoppingParams(stop=[""])}, "stopping.stop[0] has 0 bytes, must have from 1 to 1024"),
        ({"stopping": pb.StoppingParams(stop=["x" * (1 << 20)])}, "stopping.stop[0] has 1048576 bytes"),
    ],
)
async def test_val_05_oversized_lists_are_refused_with_their_limit(fields: dict[str, object], message: str) -> None:
    assert str(await refusal(pb.GenerationSpec(text="x", **fields))).startswith(message)


def test_val_08_the_wire_holds_every_seed_and_no_other() -> None:
    assert pb.SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="out of range"):
            pb.SamplingParams(seed=seed)


async def test_val_12_a_default_constructed_request_means_what_a_minimal_one_means() -> None:
    bare = pb.GenerationSpec(text="x", sampling=pb.SamplingParams(seed=7), stopping=pb.StoppingParams(max_tokens=8))
    effective = (await admit(bare)).started.effective
    sampling = effective.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (1, 1, 0, 0, 1)
    assert (effective.n, effective.output.skip_special_tokens, effective.output.stream_interval) == (1, True, 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (pb.GenerationSpec(token_ids=prompt_ids(*[1] * 4096), n=1_000_000), "n = 1000000, must be from 1 to 64"),
        (pb.GenerationSpec(text="x", output=pb.OutputOptions(logprobs=True, top_logprobs=VOCAB_SIZE + 1)), "output.top_logprobs = 321"),
        (
            pb.GenerationSpec(token_ids=prompt_ids(*[1] * 4096), output=pb.OutputOptions(prompt_logprobs=VOCAB_SIZE)),
            "output.prompt_logprobs = 320",
        ),
    ],
)
async def test_val_13_huge_counts_are_refused_at_once(spec: pb.GenerationSpec, message: str) -> None:
    assert str(await refusal(spec, max_model_len=8192)).startswith(message)


async def test_val_14_refused_requests_never_reach_the_engine() -> None:
    async with scripted_control_plane() as plane:
        bad = [{"text": "x", "n": 65}, {"text": "x", "sampling": pb.SamplingParams(top_p=0)}, {"token_ids": prompt_ids(VOCAB_SIZE)}, {}]
        for spec in bad:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plane.generate(**spec)
            assert caught.value.code() is INVALID
        assert plane.engine.submitted == []
        assert (await plane.generate(text="x")).choices[0].text == "hello"


async def test_stop_06_the_end_ids_of_all_files_stop() -> None:
    model = served_model(end_token_ids=frozenset({EOS, EOT}))
    for end in (EOS, EOT):
        async with scripted_control_plane(script=[5, end, 6], model=model) as plane:
            finished = (await plane.generate(text="x")).choices[0].finished
            assert (finished.reason, finished.stop_token_id, finished.usage.completion_tokens) == (pb.FINISH_REASON_STOP, end, 2)


async def test_stop_08_more_min_tokens_than_max_tokens_are_refused() -> None:
    stopping = pb.StoppingParams(min_tokens=10, max_tokens=5)
    assert str(await refusal(pb.GenerationSpec(text="x", stopping=stopping))) == "stopping.min_tokens = 10, must be at most max_tokens = 5"


async def test_stop_09_explicit_zero_fits_a_prompt_that_fills_the_context() -> None:
    prompt = prompt_ids(*[1] * 64)
    assert (await admit(pb.GenerationSpec(token_ids=prompt, stopping=pb.StoppingParams(max_tokens=0)))).request.max_tokens == 0
    assert "no room for output" in str(await refusal(pb.GenerationSpec(token_ids=prompt)))


async def test_stop_11_the_advertised_limit_is_the_enforced_one() -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        plane.join_worker(max_model_len=20)
        await plane.generate(text="x")
        advertised = (await plane.stub.GetModel(pb.GetModelRequest())).model.max_model_len
        with pytest.raises(grpc.aio.AioRpcError, match="token_ids has 21 tokens, may have at most 20"):
            await plane.generate(token_ids=prompt_ids(*[1] * 21))
        assert advertised == (await plane.stub.Tokenize(pb.TokenizeRequest(text="x"))).max_model_len == 20


async def test_gwy_06_text_that_spells_the_bos_has_one_and_so_has_its_count() -> None:
    for text in ("Hi", "<bos>Hi"):
        admitted = await admit(pb.GenerationSpec(text=text))
        assert (list(admitted.request.prompt_token_ids), admitted.started.num_prompt_tokens) == ([BOS, *b"Hi"], 3)
    bare = await admit(pb.GenerationSpec(text="Hi"), served_model(tokenizer=byte_tokenizer()))
    assert list(bare.request.prompt_token_ids) == [*b"Hi"]


def test_hst_07_a_value_is_told_with_the_digits_that_make_it_wrong() -> None:
    with pytest.raises(InvalidArgument, match=r"^top_p = 1\.0000001, must be in \(0, 1\]$"):
        _require(False, "top_p", pb.SamplingParams(top_p=1.0000001).top_p, "in (0, 1]")
