"""Answers that have a form: a real model, which would write noise, is held to it."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import jsonschema
import pytest
import pytest_asyncio
from fakes.text.model_directory import write_json
from fakes.text.tokenizers import EOS, SPECIAL_TOKENS, byte_tokenizer
from harness.running_gateway import running_gateway
from harness.service import VOCAB_SIZE, real_service

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
#: The last message says how the prompt ends.
TEMPLATE = "{% if false %}{{ tools }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
FORMATS = ("hermes", "llama3", "mistral", "deepseek-v3", "deepseek-v3.1", "deepseek-v4")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    from harness.checkpoints import make_checkpoint  # imports torch

    directory: Path = tmp_path_factory.mktemp("bytes") / "model"
    make_checkpoint(directory, "qwen3", vocab_size=VOCAB_SIZE, head_dim=32, eos_token_id=EOS, max_position_embeddings=512)
    byte_tokenizer(adds_bos=True)._tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", {**SPECIAL_TOKENS, "chat_template": TEMPLATE})
    async with real_service(directory) as service:
        yield f"127.0.0.1:{service.server.plane.ports['address']}"


async def answered(target, *flags, ending="", **fields):
    """The choice that answers a conversation whose prompt ends so."""
    body = {"messages": [{"role": "user", "content": f"?{ending}"}], "temperature": 2.0, "seed": 3, "max_tokens": 400, **fields}
    async with running_gateway(target, flags=flags) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize("form", FORMATS)
async def test_a_required_call_is_made_in_every_format(target, form):
    choice = await answered(
        target, "--tool-parser", form, ending="</think>", tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    schemas = {"weather": CITY, "now": {"type": "object", "maxProperties": 0}}
    jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])


@pytest.mark.parametrize("form", FORMATS)
async def test_a_named_function_is_called_once(target, form):
    named = {"type": "function", "function": {"name": "weather"}}
    choice = await answered(target, "--tool-parser", form, ending="</think>", tools=TOOLS, tool_choice=named)
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "weather")
    jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)


async def test_json_follows_thoughts_that_the_prompt_has_opened(target):
    choice = await answered(
        target,
        ending="<think>",
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}},
        logit_bias={"261": 60},
    )
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), CITY)


@pytest.mark.parametrize("ending", ["", "</think>"])
async def test_json_without_thoughts_is_all_there_is(target, ending):
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    choice = await answered(target, "--reasoning-parser", "none", ending=ending, response_format=form)
    jsonschema.validate(json.loads(choice["message"]["content"]), CITY)


async def test_a_format_beside_tools_leaves_the_choice_between_both(target):
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    choice = await answered(target, ending="</think>", tools=TOOLS, response_format=form)
    message = choice["message"]
    assert choice["finish_reason"] == "length" or message.get("tool_calls") or json.loads(message["content"])


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": "[ab]{3}/x"}, "[ab]{3}/x"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "a" | "b"'}, "a|b"),
        ({"json": CITY}, r"\{[^{}]*\}"),
    ],
)
async def test_constraints_in_our_own_terms(target, outputs, pattern):
    choice = await answered(target, ending="</think>", structured_outputs=outputs)
    assert re.fullmatch(pattern, choice["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "banana"}}}], "tool_choice": "required"},
            "tools",
        ),
        (
            {"tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}},
            "response_format",
        ),
    ],
)
async def test_a_schema_that_is_none_is_blamed_on_the_field_that_holds_it(target, fields, param):
    async with running_gateway(target) as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": "?"}], "stream": stream, **fields}
            answer = await http.post("/v1/chat/completions", json=body)
            error = answer.json()["error"]
            assert (
                (answer.status_code, error["param"]) == (400, param)
                and error["message"].startswith(f"{param}: ")
                and "banana" in error["message"]
            )
