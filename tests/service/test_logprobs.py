"""Log probabilities and usage, as clients get them."""

import json
from typing import Any

import pytest
from fakes.text.tokenizers import BOS, EOS, EOT
from google.protobuf.json_format import MessageToJson
from harness.caller import Answer
from harness.service import VOCAB_SIZE, Service, real_service

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLOOR = -9999.0


def assert_valid_numbers(answer: Answer) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in JSON")

    for choice in answer.choices:
        json.loads(MessageToJson(choice), parse_constant=refuse)
        for entry in choice.logprobs:
            assert all(FLOOR <= value <= 0 for value in (entry.logprob, *(other.logprob for other in entry.top)))


@pytest.mark.parametrize("alternatives", [{}, {"top_logprobs": 0}])
async def test_lpu_01_without_alternatives_there_is_an_entry_for_each_token(scripted: Service, alternatives: dict[str, int]) -> None:
    answer = await scripted.scripted([*b"abc", EOS], logprobs=True, **alternatives)
    entries = answer.choices[0].logprobs
    assert [entry.token_id for entry in entries] == [*b"abc", EOS]
    assert all(entry.HasField("logprob") and not entry.top for entry in entries)
    assert not (await scripted.scripted([*b"abc", EOS])).choices[0].logprobs


async def test_lpu_02_every_logprob_is_a_valid_number(real: Service) -> None:
    common = {"top_p": 0.3, "seed": 3, "max_tokens": 8, "logprobs": True, "top_logprobs": 20}
    free = await real.ask("Once upon", **common, temperature=0.8)
    likely = free.choices[0].logprobs[0].top[0].token_id
    banned = await real.ask("Once upon", **common, temperature=0.8, logit_bias={likely: -100})
    special = await real.ask("Once upon", **common, temperature=0.8, logit_bias={EOT: 100}, skip_special_tokens=False)
    for answer in (free, banned, special):
        assert_valid_numbers(answer)
    first = banned.choices[0].logprobs[0]
    assert first.token_id != likely == first.top[0].token_id  # the banned one has its true value
    assert special.token_ids == [EOT] * 8 and special.choices[0].logprobs[0].token == b"<eot>"
    for entry in special.choices[0].logprobs:
        assert entry.logprob > FLOOR


@pytest.mark.parametrize("fields", [{"temperature": value, "top_k": 1} for value in (0.5, 1.0, 2.0)] + [{"repetition_penalty": 1.01}])
async def test_lpu_03_logprobs_do_not_depend_on_sampling(real: Service, fields: dict[str, Any]) -> None:
    common = {"logprobs": True, "top_logprobs": 5, "max_tokens": 1, "seed": 1}
    plain = await real.ask("Once upon", temperature=0, **common)
    assert (await real.ask("Once upon", **{"temperature": 0, **common, **fields})).shown == plain.shown


async def test_lpu_05_prompt_logprobs_do_not_depend_on_chunks_and_cache(real: Service, byte_model: Any) -> None:
    ask = {"token_ids": [*range(40, 80)], "prompt_logprobs": 2, "max_tokens": 2, "temperature": 0}
    answer = await real.ask(**ask)
    assert [entry.token_id for entry in answer.prompt_logprobs] == [*range(40, 80)]
    assert [len(entry.top) for entry in answer.prompt_logprobs] == [0] + [2] * 39
    async with real_service(byte_model, "--max-step-tokens", "7") as chunked:
        assert (await chunked.ask(**ask)).said == answer.said
        await chunked.until_at_rest()


@pytest.mark.parametrize("max_tokens", [1, 4, 16])
async def test_lpu_06_usage_at_the_length_limit(scripted: Service, max_tokens: int) -> None:
    answer = await scripted.scripted(b"never ends", max_tokens=max_tokens)
    assert (answer.usage.completion_tokens, len(answer.token_ids), answer.reason) == (max_tokens, max_tokens, "length")


async def test_lpu_06_the_end_token_counts_and_so_does_the_bos(scripted: Service) -> None:
    before = await scripted.metric("generation_tokens_total")
    name = scripted.plan([*b"ab", EOS])
    answer = await scripted.ask(f"{name}:", logprobs=True)
    assert (answer.usage.completion_tokens, answer.token_ids, answer.text) == (3, [*b"ab", EOS], "ab")
    assert len(answer.choices[0].logprobs) == 3
    assert await scripted.metric("generation_tokens_total") - before == 6  # asked twice
    assert answer.usage.prompt_tokens == 1 + len(name) + 1 and answer.started.prompt_token_ids[0] == BOS


async def test_lpu_02_alternatives_are_at_most_the_vocabulary(real: Service) -> None:
    answer = await real.ask("x", logprobs=True, top_logprobs=20, max_tokens=1, temperature=0)
    assert len({other.token_id for other in answer.choices[0].logprobs[0].top}) == 20 < VOCAB_SIZE
    assert answer.choices[0].logprobs[0].token_id == answer.choices[0].logprobs[0].top[0].token_id
