"""What the service refuses, and what it takes; nothing refused reaches a worker or hurts anybody."""

import asyncio
import math
from typing import Any

import pytest
from fakes.text.chat_templates import QWEN_STYLE
from fakes.text.tokenizers import BOS, byte_tokenizer
from harness.caller import Answer
from harness.service import VOCAB_SIZE, Service, real_service, scripted_service

from clients import ServingError
from clients.request import Request, generation_spec
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG_PROMPT = "x" * 4000

#: (case and what is wrong, fields of the request, what the message names)
REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("VAL-01 id of the vocabulary's size", {"token_ids": [5, VOCAB_SIZE]}, ("token_ids", "320")),
    ("VAL-01 largest signed id", {"token_ids": [5, 2**31 - 1]}, ("token_ids", "2147483647")),
    ("VAL-01 largest id", {"token_ids": [5, 2**32 - 1]}, ("token_ids", "4294967295")),
    ("VAL-04 bias of an unknown id", {"logit_bias": {VOCAB_SIZE + 1: -100}}, ("logit_bias", "321")),
    ("VAL-04 huge bias", {"logit_bias": {5: 1e9}}, ("logit_bias[5]", "100")),
    ("VAL-04 bias that is no number", {"logit_bias": {5: math.nan}}, ("logit_bias[5]", "nan")),
    ("VAL-04 infinite bias", {"logit_bias": {5: -math.inf}}, ("logit_bias[5]", "-inf")),
    ("VAL-05 stop tokens", {"stop_token_ids": [7] * 10_000}, ("stop_token_ids", "256")),
    ("VAL-05 biases", {"logit_bias": dict.fromkeys(range(5000), 1.0)}, ("logit_bias", "1024")),
    ("VAL-05 stop strings", {"stop": ["x"] * 1000}, ("stop", "64")),
    ("VAL-05 empty stop string", {"stop": [""]}, ("stop[0]", "from 1")),
    ("VAL-05 long stop string", {"stop": ["x" * 1_000_000]}, ("stop[0]", "1024")),
    ("VAL-06 negative temperature", {"temperature": -0.1}, ("temperature", "-0.1")),
    ("VAL-06 temperature nan", {"temperature": math.nan}, ("temperature", "nan")),
    ("VAL-06 temperature inf", {"temperature": math.inf}, ("temperature", "inf")),
    ("VAL-06 temperature -inf", {"temperature": -math.inf}, ("temperature", "-inf")),
    ("VAL-07 top_p 0", {"top_p": 0.0}, ("top_p", "(0, 1]")),
    ("VAL-07 top_p above 1", {"top_p": 1.0001}, ("top_p", "(0, 1]")),
    ("VAL-07 top_p nan", {"top_p": math.nan}, ("top_p", "nan")),
    ("VAL-09 no ids", {"token_ids": []}, ("token_ids", "at least 1")),
    ("VAL-10 no messages", {"messages": []}, ("messages", "at least one")),
    ("VAL-13 huge n", {"n": 1_000_000}, ("n = 1000000", "64")),
    ("VAL-13 no choice", {"n": 0}, ("n = 0", "from 1")),
    ("VAL-13 top_logprobs", {"logprobs": True, "top_logprobs": VOCAB_SIZE + 1}, ("top_logprobs", "20")),
    ("VAL-13 prompt_logprobs", {"prompt": LONG_PROMPT, "prompt_logprobs": VOCAB_SIZE}, ("prompt_logprobs", "20")),
    ("repetition penalty 0", {"repetition_penalty": 0.0}, ("repetition_penalty", "> 0")),
    ("presence penalty", {"presence_penalty": 2.5}, ("presence_penalty", "[-2, 2]")),
    ("min_p", {"min_p": -0.5}, ("min_p", "[0, 1]")),
    ("long prompt", {"prompt": LONG_PROMPT}, ("256",)),
    ("max_tokens beyond the context", {"max_tokens": 1000}, ("max_tokens", "256")),
    ("STOP-08 min_tokens above max_tokens", {"max_tokens": 5, "min_tokens": 10}, ("min_tokens = 10", "5")),
    ("broken constraint", {"regex": "("}, ("constraint.regex",)),
    ("constraint without an end", {"regex": "a", "ignore_eos": True}, ("ignore_eos",)),
]


def fields_of(fields: dict[str, Any]) -> dict[str, Any]:
    has_prompt = fields.keys() & {"prompt", "token_ids", "messages"}
    return {} if has_prompt else {"prompt": "x:"}


@pytest.mark.parametrize(("fields", "named"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_val_01_val_13_a_refusal_names_field_value_and_limit(
    scripted: Service, fields: dict[str, Any], named: tuple[str, ...]
) -> None:
    num_admissions = scripted.num_admissions
    message = await scripted.refusal(**fields_of(fields), **fields)
    assert all(part in message for part in named), message
    assert len(message) < 500 and "\n" not in message
    assert scripted.num_admissions == num_admissions
    assert (await scripted.unary("canary:", max_tokens=3)).text == "zzz"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None, "token_ids": [5, 2**63 - 1]},
        {"prompt": None, "token_ids": [5, -1, 7]},
        {"logit_bias": {-1: 5}},
        {"logit_bias": {"abc": 1}},
        {"stop_token_ids": [-1]},
        {"top_k": -1},
        {"top_k": 2**32},
        {"top_k": 2**63 - 1},
        {"seed": -1},
        {"seed": 2**64},
        {"n": -1},
        {"top_logprobs": -1},
    ],
    ids=repr,
)
async def test_val_02_val_07_val_08_the_wire_has_no_place_for_it(fields: dict[str, Any]) -> None:
    with pytest.raises(ServingError) as refused:
        generation_spec(Request(**{"prompt": "x:", **fields}))
    assert refused.value.code.name == "INVALID_ARGUMENT" and list(fields)[-1] in refused.value.message


async def test_val_03_ids_between_tokenizer_and_embedding(scripted: Service) -> None:
    name = scripted.plan([*b"ab", 300, *b"c"])
    answer = await scripted.ask(token_ids=[300, *scripted.script.prompt(name)], max_tokens=4)
    assert answer.usage.completion_tokens == 4
    answer = await scripted.scripted([*b"ab", 300, *b"c"], max_tokens=4, logprobs=True)
    assert (answer.text, answer.usage.completion_tokens, answer.token_ids[2]) == ("abc", 4, 300)
    answer = await scripted.scripted([*b"ab", 300, *b"c"], stop_token_ids=[300])
    assert (answer.text, answer.matched) == ("ab", 300)


# With a model, all in one batch


async def _at_once(real: Service, requests: list[dict[str, Any]]) -> list[Answer]:
    return await asyncio.gather(*(real.unary("Once upon", **fields) for fields in requests))


async def test_val_06_temperatures_at_once(real: Service) -> None:
    (greedy,) = await _at_once(real, [{"temperature": 0, "max_tokens": 5}])
    refusals = asyncio.gather(*(real.refusal("x", temperature=value) for value in (-0.1, math.nan, math.inf, -math.inf)))
    values = (0.0, 1e-12, 1e-5, 1e-4, 2.0, 1e6)
    answers = await _at_once(real, [{"temperature": value, "max_tokens": 5, "seed": 1, "ignore_eos": True} for value in values])
    assert all("temperature" in message for message in await refusals)
    assert [answer.token_ids for answer in answers[:4]] == [greedy.token_ids] * 4
    for answer in answers[4:]:
        assert len(answer.token_ids) == answer.usage.completion_tokens == 5 and len(set(answer.token_ids)) > 1


async def test_val_07_filters_at_once(real: Service) -> None:
    off = [{}, {"top_k": 0}, *({"top_k": value} for value in (VOCAB_SIZE, VOCAB_SIZE + 1, 2**31 - 1, 2**31, 2**32 - 1)), {"top_p": 1.0}]
    common = {"temperature": 1.0, "seed": 4, "max_tokens": 12}
    greedy, narrow, *answers = await _at_once(
        real, [{"temperature": 0, "max_tokens": 12}, {**common, "top_k": 1}, *({**common, **fields} for fields in off)]
    )
    assert narrow.token_ids == greedy.token_ids
    assert {tuple(answer.token_ids) for answer in answers} == {tuple(answers[0].token_ids)} != {tuple(greedy.token_ids)}


async def test_val_08_seeds_at_once(real: Service) -> None:
    common = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    seeds = (0, 0, 1, 2**63 - 1, 2**64 - 1)
    zero, again, *others = await _at_once(real, [*({**common, "seed": seed} for seed in seeds), common, common])
    assert zero.token_ids == again.token_ids and zero.started.effective.sampling.seed == 0
    assert len({tuple(answer.token_ids) for answer in (zero, *others)}) == 6
    absent = others[-1]
    assert absent.token_ids == (await real.unary("Once upon", **common, seed=absent.started.effective.sampling.seed)).token_ids


# Prompts


async def test_val_09_empty_text_is_a_bos_if_there_is_one(scripted: Service, model_with: Any) -> None:
    answer = await scripted.ask("", max_tokens=2)
    assert (list(answer.started.prompt_token_ids), answer.usage.prompt_tokens) == ([BOS], 1)
    model = model_with()
    byte_tokenizer()._tokenizer.save(str(model / "tokenizer.json"))
    async with scripted_service(model) as service:
        for fields in ({"prompt": ""}, {"token_ids": []}, {"messages": [{"role": "user", "content": ""}]}):
            assert "at least 1" in await service.refusal(**fields)
        assert (await service.scripted(b"canary", max_tokens=6)).text == "canary"


async def test_val_10_incomplete_conversations(model_with: Any) -> None:
    known = "{% if message['role'] not in ('user', 'assistant') %}{{ raise_exception('Unknown role ' ~ message['role']) }}{% endif %}"
    template = f"{{% for message in messages %}}{known}{{{{ message['content'] }}}}{{% endfor %}}:"
    async with scripted_service(model_with(tokenizer_config={"chat_template": template})) as service:
        for message, named in (
            (pb.ChatMessage(role="user"), "content"),
            (pb.ChatMessage(role="wizard", content="x"), "Unknown role wizard"),
            (pb.ChatMessage(content="x"), "role"),
        ):
            spec = pb.GenerationSpec(chat=pb.Chat(messages=[message]))
            assert named in await service.refusal_of(spec)
        assert "messages" in await service.refusal(messages=[])
        answer = await service.ask(messages=[{"role": "user", "content": ""}], max_tokens=2)
        assert (answer.text, answer.usage.prompt_tokens) == ("zz", 1)


async def test_val_10_a_message_of_tool_calls_needs_no_content(model_with: Any) -> None:
    async with scripted_service(model_with(tokenizer_config={"chat_template": QWEN_STYLE})) as service:
        call = pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="f", arguments="{}")])
        spec = pb.GenerationSpec(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="x"), call]))
        spec.stopping.max_tokens = 1
        assert (await service.unary_of(spec)).usage.completion_tokens == 1


# Defaults


async def test_val_11_explicit_zero_is_not_absent(model_with: Any) -> None:
    model = model_with(generation_config={"temperature": 0.6, "top_p": 0.9})
    async with scripted_service(model, "--default-presence-penalty", "0.5") as service:
        answer = await service.ask("x:", temperature=0, presence_penalty=0, min_tokens=0, seed=0, max_tokens=3)
        sampling, stopping = answer.started.effective.sampling, answer.started.effective.stopping
        assert (sampling.temperature, sampling.presence_penalty, sampling.seed, stopping.min_tokens) == (0, 0, 0, 0)
        answer = await service.unary("x:", max_tokens=3)
        sampling = answer.started.effective.sampling
        assert (sampling.temperature, sampling.top_p, sampling.presence_penalty) == pytest.approx((0.6, 0.9, 0.5))
        drawn = [admission.sampling for step in service.worker.steps for admission in step.admissions]
        assert {round(sampling.temperature, 3) for sampling in drawn} == {0.0, 0.6}
        assert {sampling.presence_penalty for sampling in drawn} == {0.0, 0.5}


async def test_val_12_a_default_constructed_request_is_a_minimal_one(real: Service) -> None:
    least = pb.GenerationSpec(text="Once upon", sampling=pb.SamplingParams(seed=7), stopping=pb.StoppingParams(max_tokens=8))
    empty_parts = pb.GenerationSpec(output=pb.OutputOptions(), **{name: getattr(least, name) for name in ("text", "sampling", "stopping")})
    expected = await real.ask("Once upon", seed=7, max_tokens=8)
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1, "skip_special_tokens": True}
    assert (await real.ask("Once upon", seed=7, max_tokens=8, **neutral)).said == expected.said
    for spec in (least, empty_parts):
        for answer in (await real.unary_of(spec), await real.stream_of(spec)):
            assert answer.shown == expected.shown
    assert "prompt is absent" in await real.refusal_of(pb.GenerationSpec())


# Everything at once


async def test_val_14_refusals_hurt_nobody(byte_model: Any) -> None:
    async with real_service(byte_model, "--max-model-len", "256") as service:
        story = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
        solos = [await service.stream(f"Tale {index}", **story) for index in range(4)]
        streams = [asyncio.ensure_future(service.stream(f"Tale {index}", **story)) for index in range(4)]
        while not any(state.num_generated_tokens for state in (await service.state()).sequences):
            await asyncio.sleep(0.002)
        for _, fields, named in REFUSED:
            message = await service.refusal(**fields_of(fields), **fields)
            assert all(part in message for part in named)
        assert [answer.said for answer in await asyncio.gather(*streams)] == [solo.said for solo in solos]
        await service.until_at_rest()
        assert service.num_ended("internal") == service.num_ended("invalid_argument") == 0
