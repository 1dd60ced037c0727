"""Constrained output of the real model, drawn at random: whatever it says is in the language that it was asked for."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from harness.service import Service, real_service

from clients import AsyncClient
from clients.results import Completion

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

_COMPACT = {"x-guidance": {"whitespace_flexible": False}}
# By default 64 at each place, for which MAX_TOKENS is too small.
_FEW_BLANKS = {"x-guidance": {"whitespace_pattern": "[ \\n]{0,3}"}}
_WORD = {"type": "string", "maxLength": 8}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


#: Each is bounded, so that every output ends by itself.
SCHEMAS: list[dict[str, Any]] = [
    _object(name=_WORD, age={"type": "integer", "minimum": 0, "maximum": 120}),
    _object(("unit",), value={"type": "integer", "minimum": -40, "maximum": 40}, unit={"enum": ["C", "F"]}),
    _object(color={"enum": ["red", "green", "blue"]}, is_warm={"type": "boolean"}, hex={"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6}, "minItems": 2, "maxItems": 5},
    {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"enum": ["maybe", 7]}, _object(why=_WORD)]},
    _object(at=_object(x={"type": "integer", "minimum": 0, "maximum": 9}, y={"type": "integer", "minimum": 0, "maximum": 9}), tag=_WORD),
    {"type": "array", "items": _object(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{2}$"}), "minItems": 1, "maxItems": 2},
    {"oneOf": [_object(kind={"const": "cat"}, lives={"enum": [9]}), _object(kind={"const": "dog"}, tricks={"enum": [1, 2]})]},
]
PER_SCHEMA = 25  # 200 in all
CONCURRENCY = 32
MAX_TOKENS = 160  # no output of these languages is longer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(demo_model: Path) -> AsyncIterator[Service]:
    flags = ("--dtype", "bfloat16", "--threads", "2", "--max-lanes", str(CONCURRENCY), "--max-step-tokens", "512")
    async with real_service(demo_model, "--max-model-len", "512", worker_flags=flags) as service:
        yield service
        await service.until_at_rest()
        assert service.num_ended("invalid_argument") == service.num_ended("internal") == 0


async def generate(service: Service, requests: list[dict[str, Any]]) -> list[Completion]:
    """All of `requests`, so many at a time."""
    lanes = asyncio.Semaphore(CONCURRENCY)

    async def one(client: AsyncClient, request: dict[str, Any]) -> Completion:
        async with lanes:
            return await client.generate(temperature=1.0, **request)

    async with AsyncClient(f"127.0.0.1:{service.server.plane.ports['address']}") as client:
        return await asyncio.gather(*(one(client, request) for request in requests))


def ask(text: str, **constraint: Any) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": text}]
    return [{"messages": messages, "seed": seed, "max_tokens": MAX_TOKENS, **constraint} for seed in range(PER_SCHEMA)]


async def test_every_json_output_validates(service: Service) -> None:
    # Every second schema leaves blanks to the model, in all other places than strings.
    schemas = [schema | (_COMPACT if index % 2 else _FEW_BLANKS) for index, schema in enumerate(SCHEMAS)]
    requests = [request for schema in schemas for request in ask("An example in JSON, please.", json_schema=json.dumps(schema))]
    answers = await generate(service, requests)
    assert len(answers) == 200 and {answer.finish_reason for answer in answers} == {"stop"}
    for request, answer in zip(requests, answers, strict=True):
        jsonschema.validate(json.loads(answer.text), json.loads(request["json_schema"]))
    assert len({answer.text for answer in answers}) > 80


@pytest.mark.parametrize("pattern", [r"[1-9][0-9]{2,4} (apples|pears)", r"(?i)yes|no, [a-z]{3,9}\.", r"\p{Lu}\p{Ll}{2,7}( [0-9])?"])
async def test_every_output_matches_its_expression(service: Service, pattern: str) -> None:
    answers = await generate(service, ask("How many are there?", regex=pattern)[:10])
    in_python = pattern.replace(r"\p{Lu}", "[^\\W\\d_a-z]").replace(r"\p{Ll}", "[^\\W\\d_A-Z]")
    assert {answer.finish_reason for answer in answers} == {"stop"}
    assert all(re.fullmatch(in_python, answer.text) for answer in answers)
    assert len({answer.text for answer in answers}) > 1


async def test_every_output_is_an_alternative(service: Service) -> None:
    texts = ["Paris", "Paris, France", "I do not know.", "模型🙂"]
    answers = await generate(service, ask("What is the capital of France?", alternatives=texts)[:16])
    assert {answer.text for answer in answers} <= set(texts) and {answer.finish_reason for answer in answers} == {"stop"}


def _sum(text: str) -> int:
    """The value of `sum` of the grammar below; raises ValueError for any other text."""
    if not re.fullmatch(r"[0-9+*()]+", text):
        raise ValueError(text)
    try:
        return int(eval(text))
    except SyntaxError as error:
        raise ValueError(text) from error


async def test_every_output_parses(service: Service) -> None:
    grammar = 'start: item ("+" item){0,3}\nitem: number | "(" number "*" number ")"\nnumber: /[1-9][0-9]?/'
    answers = await generate(service, ask("What is 17 times 4?", grammar=grammar)[:16])
    assert {answer.finish_reason for answer in answers} == {"stop"} and all(_sum(answer.text) > 0 for answer in answers)
