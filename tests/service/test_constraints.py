"""Constrained output under everything else that can be asked for or can happen. Real engine, real model, random draws."""

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fakes.text.tokenizers import EOS
from harness.caller import Answer, resume_of
from harness.running_control_plane import running
from harness.service import Service, real_service, real_worker

from clients.request import Request, generation_spec
from clients.stream_state import StreamState
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PATTERN = "[a-z]{3,12}-[0-9]{2,6}"
ALTERNATIVES = ["yes", "yes, please", "no"]
LANGUAGES: dict[str, dict[str, Any]] = {
    "json_schema": {"json_schema": json.dumps(SCHEMA)},
    "regex": {"regex": PATTERN},
    "alternatives": {"alternatives": ALTERNATIVES},
    "grammar": {"grammar": 'start: "(" start ")" | "." | ","'},
}
ASK: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 40}
LONG = {"regex": "[a-z]{30,36}", **ASK}

each_language = pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES.keys())


def assert_fits(text: str, language: dict[str, Any]) -> None:
    if "json_schema" in language:
        jsonschema.validate(json.loads(text), SCHEMA)
    elif "regex" in language:
        assert re.fullmatch(PATTERN, text)
    elif "alternatives" in language:
        assert text in ALTERNATIVES
    else:
        depth = len(text) // 2
        assert text in ("(" * depth + "." + ")" * depth, "(" * depth + "," + ")" * depth)


def seed_of(seed: int, choice: int) -> int:
    """The seed of a choice, as the documentation says."""
    digest = hashlib.sha256(seed.to_bytes(8, "little") + choice.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:8], "little") if choice else seed


async def solo(real: Service, language: dict[str, Any], **fields: Any) -> Answer:
    return await real.ask("Once upon", **{**ASK, **language, **fields})


@each_language
async def test_the_whole_output_is_in_the_language(real: Service, language: dict[str, Any]) -> None:
    answers = [await solo(real, language, seed=seed) for seed in range(4)]
    for answer in answers:
        if answer.reason == "stop":
            assert_fits(answer.text, language)
        else:
            assert answer.usage.completion_tokens == 40
    assert any(answer.reason == "stop" for answer in answers)


@each_language
async def test_n_choices_each_fit_and_equal_requests_of_their_own(real: Service, language: dict[str, Any]) -> None:
    several = await solo(real, language, n=3)
    for index, choice in enumerate(several.choices):
        alone = await solo(real, language, seed=seed_of(3, index))
        assert (choice.text, list(choice.token_ids)) == (alone.text, alone.token_ids)


@each_language
async def test_logprobs_are_those_of_the_unmodified_logits(real: Service, language: dict[str, Any]) -> None:
    answer = await solo(real, language, logprobs=True, top_logprobs=20)
    free = await real.ask("Once upon", **{**ASK, "max_tokens": 1}, logprobs=True, top_logprobs=20)
    assert len(answer.choices[0].logprobs) == len(answer.token_ids)
    assert [str(other) for other in answer.choices[0].logprobs[0].top] == [str(other) for other in free.choices[0].logprobs[0].top]


@each_language
async def test_others_and_chunks_change_nothing(real: Service, byte_model: Path, language: dict[str, Any]) -> None:
    expected = await solo(real, language)
    async with real_service(byte_model, "--max-step-tokens", "5") as service:
        others = [asyncio.ensure_future(service.unary("Another " * 3, seed=1, max_tokens=30, **other)) for other in LANGUAGES.values()]
        assert (await service.stream("Once upon", **{**ASK, **language})).shown == expected.shown
        await asyncio.gather(*others)
        await service.until_at_rest()


async def test_a_preemption_changes_nothing(real: Service, byte_model: Path) -> None:
    expected = await real.ask("Once upon", **LONG)
    flags = ("--max-model-len", "64", "--worker-grace-seconds", "5")
    async with real_service(byte_model, *flags, worker_flags=("--num-pages", "6")) as service:
        asked = asyncio.ensure_future(service.stream("Once upon", priority=9, **LONG))
        while not (await service.state()).sequences:
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(service.unary("Another one", max_tokens=30, ignore_eos=True)) for _ in range(4)]
        answer = await asked
        await asyncio.gather(*others)
        assert answer.shown == expected.shown
        assert answer.finished.timing.num_readmissions >= 1


async def test_a_lost_worker_changes_nothing(real: Service, byte_model: Path) -> None:
    request = Request("Once upon", **LONG, n=3)
    expected = await real.stream_of(generation_spec(request))
    async with (
        real_worker(byte_model) as first,
        real_worker(byte_model) as second,
        running(byte_model, "--worker", first.address, "--worker", second.address) as server,
    ):
        state, service = StreamState(request), Service(server, first)
        while len((await service.state()).workers) < 2:
            await asyncio.sleep(0.002)
        call = service.stub.GenerateStream(state.next_request())
        await take_tokens(state, call, 6)
        carrier = next(worker for worker in (first, second) if not worker.servicer.is_idle)
        await carrier.server.stop("gone")
        while not state.is_complete:
            state.receive(await call.read())
        assert [list(choice.token_ids) for choice in state.completion().choices] == [list(choice.token_ids) for choice in expected.choices]


async def take_tokens(state: StreamState, call: Any, num_tokens: int) -> None:
    while (state.num_tokens or 0) < num_tokens:
        state.receive(await call.read())


def resume_within(whole: Answer, received: int, language: dict[str, Any]) -> pb.GenerationSpec:
    return pb.GenerationSpec(constraint=generation_spec(Request("x", **language)).constraint, resume=resume_of(whole, received))


@each_language
async def test_a_resume_goes_on_inside_the_language(real: Service, language: dict[str, Any]) -> None:
    fields = {**ASK, **language}
    whole = await real.stream("Once upon", **fields)
    for received in range(len(whole.token_ids)):
        spec = resume_within(whole, received, language)
        rest = await real.stream_of(spec)
        assert [*whole.token_ids[:received], *rest.token_ids] == whole.token_ids
        assert (rest.reason, rest.usage.completion_tokens) == (whole.reason, len(whole.token_ids))
        assert whole.text.endswith(rest.text)


@each_language
async def test_a_resume_from_outside_the_language_is_refused(real: Service, language: dict[str, Any]) -> None:
    spec = resume_within(await real.stream("Once upon", **ASK, **language), 1, language)
    spec.resume.choices[0].token_ids[:] = [ord("?")]
    assert "constraint" in await real.refusal_of(spec)


async def test_a_stop_string_cuts_the_output(real: Service) -> None:
    whole = await solo(real, LANGUAGES["regex"])
    cut = await solo(real, LANGUAGES["regex"], stop="-")
    assert (cut.text, cut.matched) == (whole.text.partition("-")[0], "-")


async def test_a_minimum_length_holds_as_far_as_the_language_goes(real: Service) -> None:
    eager = {**ASK, "logit_bias": {EOS: 100}, "regex": "[a-z]{2,20}"}
    assert [len((await real.ask("Once upon", **eager, min_tokens=least)).text) for least in (0, 3, 9, 20)] == [2, 3, 9, 20]
    message = await real.refusal("Once upon", **eager, min_tokens=21)
    assert "min_tokens" in message or "constraint" in message


async def test_a_bias_steers_within_the_language(real: Service) -> None:
    steered = await solo(real, LANGUAGES["regex"], logit_bias={ord("q"): 100, ord("?"): 100, ord("7"): 50})
    assert steered.text == "q" * 12 + "-" + "7" * 6
    assert (await solo(real, LANGUAGES["alternatives"], logit_bias={ord("n"): 100})).text == "no"


async def test_a_cut_by_length_is_the_beginning_of_something_that_fits(real: Service) -> None:
    whole = await solo(real, LANGUAGES["json_schema"])
    cut = await solo(real, LANGUAGES["json_schema"], max_tokens=4)
    assert (cut.reason, cut.token_ids) == ("length", whole.token_ids[:4])


async def test_penalties_work_inside_the_language(real: Service) -> None:
    fields = {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 10.0}
    answer = await solo(real, LANGUAGES["regex"], **fields)
    assert re.fullmatch(PATTERN, answer.text)
