"""Validation: every refused input names field, value and limit, and nothing of it reaches the engine."""

import math

import grpc
import pytest
from fakes.control_plane.scripted_engine import MAX_MODEL_LEN, VOCAB_SIZE, compiler_of, served_model
from fakes.text.tokenizers import BOS, EOS, EOT, byte_tokenizer
from harness.request_admission import admit, prompt_ids, refusal

from control_plane.edge.service.admission.admission import Admission
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.service.errors import RequestError
from control_plane.edge.text.chat_template import ChatTemplate
from control_plane.edge.text.tokenizer import Tokenizer
from pypto_serving.inference.v1 import inference_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
USER = pb.ChatMessage(role="user", content="x")


SAMPLING = [
    ({"temperature": -0.1}, "sampling.temperature = -0.1, must be >= 0 and finite"),
    ({"temperature": math.nan}, "sampling.temperature = nan"),
    ({"temperature": math.inf}, "sampling.temperature = inf"),
    ({"top_p": 0.0}, "sampling.top_p = 0, must be in (0, 1]"),
    ({"top_p": 1.0001}, "sampling.top_p = 1.0001"),
    ({"top_p": math.nan}, "sampling.top_p = nan"),
    ({"min_p": -0.5}, "sampling.min_p = -0.5, must be in [0, 1]"),
    ({"min_p": 1.5}, "sampling.min_p = 1.5"),
    ({"repetition_penalty": 0.0}, "sampling.repetition_penalty = 0, must be > 0 and finite"),
    ({"repetition_penalty": math.inf}, "sampling.repetition_penalty = inf"),
    ({"presence_penalty": 2.5}, "sampling.presence_penalty = 2.5, must be in [-2, 2]"),
    ({"frequency_penalty": math.nan}, "sampling.frequency_penalty = nan"),
    ({"logit_bias": {VOCAB_SIZE + 1: -100.0}}, f"sampling.logit_bias: token id {VOCAB_SIZE + 1}"),
    ({"logit_bias": {1: 1e9}}, "sampling.logit_bias[1] = 1e+09, must be in [-100, 100]"),
    ({"logit_bias": {1: math.nan}}, "sampling.logit_bias[1] = nan"),
    ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "sampling.logit_bias has 1025 entries, may have at most 1024"),
]
STOPPING = [
    ({"stop": [""]}, "stopping.stop[0] has 0 bytes, must have from 1 to 1024"),
    ({"stop": ["x" * 1025]}, "stopping.stop[0] has 1025 bytes"),
    ({"stop": ["é" * 513]}, "stopping.stop[0] has 1026 bytes"),
    ({"stop": ["x"] * 65}, "stopping.stop has 65 entries, may have at most 64"),
    ({"stop_token_ids": [VOCAB_SIZE]}, f"stopping.stop_token_ids: token id {VOCAB_SIZE} at position 0 is not below the vocabulary size"),
    ({"stop_token_ids": [1] * 257}, "stopping.stop_token_ids has 257 entries, may have at most 256"),
    ({"min_tokens": 10, "max_tokens": 5}, "stopping.min_tokens = 10, must be at most max_tokens = 5"),
    ({"min_tokens": 100}, "stopping.min_tokens = 100, must be at most max_tokens = 61"),
    ({"max_tokens": 62}, "stopping.max_tokens = 62, must be at most 61: the prompt has 3 tokens, and a request may have 64"),
    ({"max_tokens": 2**32 - 1}, "stopping.max_tokens = 4294967295"),
]
OUTPUT = [
    ({"top_logprobs": 21, "logprobs": True}, "output.top_logprobs = 21, must be at most 20"),
    ({"top_logprobs": 1}, "output.top_logprobs = 1, must be 0 unless logprobs is set"),
    ({"prompt_logprobs": 21}, "output.prompt_logprobs = 21, must be at most 20"),
    ({"stream_interval": 0}, "output.stream_interval = 0, must be from 1 to 1024"),
    ({"stream_interval": 1025}, "output.stream_interval = 1025"),
]
SPECS = [
    (pb.GenerationSpec(), INVALID, "prompt is absent"),
    (pb.GenerationSpec(token_ids=prompt_ids()), INVALID, "token_ids has 0 tokens, must have at least 1"),
    (pb.GenerationSpec(token_ids=prompt_ids(5, VOCAB_SIZE)), INVALID, f"token_ids: token id {VOCAB_SIZE} at position 1"),
    (pb.GenerationSpec(token_ids=prompt_ids(5, 2**32 - 1)), INVALID, "token_ids: token id 4294967295 at position 1"),
    (pb.GenerationSpec(token_ids=prompt_ids(*[1] * MAX_MODEL_LEN)), INVALID, "the prompt has 64 tokens, and a request may have 64"),
    (pb.GenerationSpec(token_ids=prompt_ids(*[1] * 65)), INVALID, "token_ids has 65 tokens, may have at most 64"),
    (
        pb.GenerationSpec(text="x" * 513),
        INVALID,
        "text has 513 characters, may have at most 512: a request may have 64 tokens, of at most 8 ",
    ),
    (pb.GenerationSpec(chat=pb.Chat(messages=[USER] * 65)), INVALID, "chat.messages has 65 entries, may have at most 64: a request may"),
    (
        pb.GenerationSpec(chat=pb.Chat(messages=[pb.ChatMessage(role="u", content="x" * 512)])),
        INVALID,
        "chat.messages has 513 characters, may have at most 512",
    ),
    (
        pb.GenerationSpec(chat=pb.Chat(messages=[pb.ChatMessage(role="u", content="x" * 510)])),
        INVALID,
        "chat, rendered, has 516 characters, may have at most 512",
    ),
    (
        pb.GenerationSpec(text="x" * 300),
        INVALID,
        "text has more than 64 tokens: a request may have 64 tokens, of at most 8 characters each",
    ),
    (pb.GenerationSpec(text="x" * 100), INVALID, "the prompt has 101 tokens, and a request may have 64"),
    (pb.GenerationSpec(text="x", request_id="é"), INVALID, "request_id 'é' must be at most 256 characters of printable ASCII"),
    (pb.GenerationSpec(text="x", request_id="a\nb"), INVALID, "request_id 'a\\nb'"),
    (pb.GenerationSpec(text="x", request_id="a" * 257), INVALID, "request_id"),
    (pb.GenerationSpec(text="x", cache_salt="é" * 129), INVALID, "cache_salt has 258 bytes, may have at most 256"),
    (pb.GenerationSpec(text="x", n=0), INVALID, "n = 0, must be from 1 to 64"),
    (pb.GenerationSpec(text="x", n=1_000_000), INVALID, "n = 1000000, must be from 1 to 64"),
    (pb.GenerationSpec(chat=pb.Chat()), INVALID, "chat.messages is empty"),
    (pb.GenerationSpec(chat=pb.Chat(messages=[USER, pb.ChatMessage(role="user")])), INVALID, "chat.messages[1].content is absent"),
    (pb.GenerationSpec(chat=pb.Chat(messages=[pb.ChatMessage(content="x")])), INVALID, "chat.messages[0].role is empty"),
    (pb.GenerationSpec(text="x", model="other"), grpc.StatusCode.NOT_FOUND, "model 'other' is not served; this server has 'bytes'"),
]


@pytest.mark.parametrize(("fields", "message"), SAMPLING)
async def test_sampling_out_of_range_is_refused(fields: dict[str, object], message: str) -> None:
    error = await refusal(pb.GenerationSpec(text="Hi", sampling=pb.SamplingParams(**fields)))
    assert (error.code, str(error)[: len(message)]) == (INVALID, message)


@pytest.mark.parametrize(("fields", "message"), STOPPING)
async def test_stopping_out_of_range_is_refused(fields: dict[str, object], message: str) -> None:
    error = await refusal(pb.GenerationSpec(text="Hi", stopping=pb.StoppingParams(**fields)))
    assert (error.code, str(error)[: len(message)]) == (INVALID, message)


@pytest.mark.parametrize(("fields", "message"), OUTPUT)
async def test_output_out_of_range_is_refused(fields: dict[str, object], message: str) -> None:
    error = await refusal(pb.GenerationSpec(text="Hi", output=pb.OutputOptions(**fields)))
    assert (error.code, str(error)[: len(message)]) == (INVALID, message)


@pytest.mark.parametrize(("spec", "code", "message"), SPECS)
async def test_a_spec_that_makes_no_sense_is_refused(spec: pb.GenerationSpec, code: grpc.StatusCode, message: str) -> None:
    error = await refusal(spec)
    assert (error.code, str(error)[: len(message)]) == (code, message)


async def test_before_the_first_worker_the_limit_of_the_model_holds() -> None:
    model = served_model(max_positions=4)
    with pytest.raises(RequestError, match="token_ids has 5 tokens, may have at most 4"):
        await Admission(model, PromptEncoder(model), compiler_of(model), Replayer(), ContextLimit(1.0, 1)).admit(
            pb.GenerationSpec(token_ids=prompt_ids(*[1] * 5)), "drawn"
        )


async def test_a_prompt_may_be_spelled_in_special_tokens_up_to_the_limit() -> None:
    assert len((await admit(pb.GenerationSpec(text="</think>" * 62))).request.prompt_token_ids) == 63


async def test_a_text_of_far_too_many_tokens_is_never_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served_model(max_positions=100_000)
    sizes: list[int] = []
    encode = model.tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda _, text, *rest, **named: sizes.append(len(text)) or encode(text, *rest, **named))
    with pytest.raises(RequestError, match="text has more than 100000 tokens"):
        await Admission(model, PromptEncoder(model), compiler_of(model), Replayer(), ContextLimit(1.0, 1)).admit(
            pb.GenerationSpec(text="x" * 700_000), "drawn"
        )
    assert sizes == [1 << 16] * 4


async def test_gwy_05_a_template_that_refuses_the_messages_is_quoted() -> None:
    model = served_model(chat_template=ChatTemplate("{{ raise_exception('roles must alternate') }}", {}))
    error = await refusal(pb.GenerationSpec(chat=pb.Chat(messages=[USER])), model)
    assert (error.code, "roles must alternate" in str(error)) == (INVALID, True)


async def test_val_09_an_empty_prompt_needs_a_bos() -> None:
    assert list((await admit(pb.GenerationSpec(text=""))).request.prompt_token_ids) == [BOS]
    error = await refusal(pb.GenerationSpec(text=""), served_model(tokenizer=byte_tokenizer()))
    assert (error.code, str(error)) == (INVALID, "text has 0 tokens, must have at least 1")


async def test_val_11_explicit_zero_is_not_unset() -> None:
    defaults = pb.SamplingParams(
        temperature=0.6, top_p=0.9, top_k=0, min_p=0, repetition_penalty=1, presence_penalty=0.5, frequency_penalty=0
    )
    model = served_model(default_sampling=defaults)
    absent = await admit(pb.GenerationSpec(text="x"), model)
    zero = await admit(pb.GenerationSpec(text="x", sampling=pb.SamplingParams(temperature=0, presence_penalty=0, seed=0)), model)
    assert absent.request.choices[0].sampling.temperature == pytest.approx(0.6)
    assert zero.request.choices[0].sampling.temperature == 0 == zero.request.choices[0].sampling.presence_penalty
    assert zero.started.effective.sampling.top_p == pytest.approx(0.9)
    assert zero.request.choices[0].sampling.seed == 0


async def test_val_06_tiny_temperatures_are_greedy() -> None:
    for temperature, effective in ((1e-12, 0.0), (0.0, 0.0), (1e-4, 1e-4)):
        admitted = await admit(pb.GenerationSpec(text="x", sampling=pb.SamplingParams(temperature=temperature)))
        assert admitted.request.choices[0].sampling.temperature == pytest.approx(effective, rel=1e-6, abs=0)


async def test_val_07_top_k_of_the_vocabulary_or_more_is_off() -> None:
    for top_k, effective in ((0, 0), (1, 1), (VOCAB_SIZE, 0), (2**32 - 1, 0)):
        admitted = await admit(pb.GenerationSpec(text="x", sampling=pb.SamplingParams(top_k=top_k)))
        assert admitted.request.choices[0].sampling.top_k == effective


async def test_val_08_absent_seeds_differ_and_are_reported() -> None:
    first, second = [await admit(pb.GenerationSpec(text="x")) for _ in range(2)]
    assert first.started.effective.sampling.seed == first.request.choices[0].sampling.seed
    assert first.request.choices[0].sampling.seed != second.request.choices[0].sampling.seed


async def test_every_effective_parameter_is_reported() -> None:
    effective = (await admit(pb.GenerationSpec(text="x"))).started.effective
    absent = {
        f"{part}.{field.name}"
        for part in ("sampling", "stopping", "output")
        for field in getattr(effective, part).DESCRIPTOR.fields
        if field.has_presence and not getattr(effective, part).HasField(field.name)
    }
    assert absent == {"output.prompt_logprobs"}


async def test_stop_07_ignore_eos_keeps_the_stop_tokens_of_the_request() -> None:
    stopping = pb.StoppingParams(ignore_eos=True, stop_token_ids=[EOT])
    assert (await admit(pb.GenerationSpec(text="x", stopping=stopping))).request.end_token_ids == {EOT}
    assert (await admit(pb.GenerationSpec(text="x"))).request.end_token_ids == {EOS}


@pytest.mark.parametrize(
    ("stopping", "skip", "end", "text"),
    [
        ({}, True, EOS, "a"),
        ({}, False, EOS, "a<eos>"),
        ({"stop_token_ids": [EOT]}, False, EOT, "a"),
        ({"stop_token_ids": [EOT], "include_stop": True}, True, EOT, "a<eot>"),
        ({"include_stop": True}, True, EOS, "a"),
    ],
)
async def test_which_end_tokens_have_text(stopping: dict[str, object], skip: bool, end: int, text: str) -> None:
    spec = pb.GenerationSpec(text="x", stopping=pb.StoppingParams(**stopping), output=pb.OutputOptions(skip_special_tokens=skip))
    output = (await admit(spec)).choices[0]
    output.token_ids.extend([ord("a"), end])
    delta = output.take(1, 2)
    assert delta is not None and delta.text == text
