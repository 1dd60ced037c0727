"""Names of requests, and several choices of one request."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from harness.caller import Caller
from harness.service import Service, scripted_service, status_of
from harness.waiting import until, until_first_token

from clients import AsyncClient
from clients.request import Request, generation_spec
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_idn_01_a_second_request_of_the_same_name(scripted_model: Path) -> None:
    async with scripted_service(scripted_model, step_seconds=0.002) as service:
        name, other = service.plan(b"abcdefghijkl"), service.plan(b"mnopqr")
        solo = await service.stream(f"{name}:", max_tokens=100)
        first = asyncio.ensure_future(service.stream(f"{name}:", max_tokens=100, request_id="x"))
        await until(lambda: service.num_admissions == 2)
        other_connection = Caller(service.server.channel())
        for caller in (service, other_connection):
            for ask in (caller.unary, caller.stream):
                assert await status_of(ask(f"{other}:", max_tokens=3, request_id="x")) == "ALREADY_EXISTS"
        assert (await first).said == solo.said
        assert (await service.stream(f"{other}:", max_tokens=6, request_id="x")).text == "mnopqr"


@pytest.mark.parametrize("num_connections", [1, 2])
async def test_idn_01_the_same_name_at_the_same_moment(scripted: Service, num_connections: int) -> None:
    callers = [scripted, Caller(scripted.server.channel()) if num_connections == 2 else scripted]
    outputs = {scripted.plan(output): output.decode() for output in (b"abcd", b"mnop")}
    for attempt in range(10):
        calls = [
            caller.stream(f"{name}:", max_tokens=100, request_id=f"same {attempt}") for caller, name in zip(callers, outputs, strict=True)
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        (refused,) = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert refused.code() is grpc.StatusCode.ALREADY_EXISTS
        ((text, answer),) = [(text, answer) for text, answer in zip(outputs.values(), answers, strict=True) if answer is not refused]
        assert answer.text == text + "z" * 96


async def test_idn_02_each_choice_ends_on_its_own(real: Service) -> None:
    fields = {"n": 2, "seed": 8, "temperature": 1.0, "max_tokens": 10, "ignore_eos": True}
    free = await real.ask("Once upon", **fields)
    first, second = (list(choice.token_ids) for choice in free.choices)
    assert first[1] not in [first[0], *second], "another seed is needed"
    answer = await real.ask("Once upon", **fields, stop_token_ids=[first[1]])
    assert [list(choice.token_ids) for choice in answer.choices] == [first[:2], second]
    assert [choice.finished.reason for choice in answer.choices] == [pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH]
    spec = generation_spec(Request("Once upon", **fields, stop_token_ids=[first[1]]))
    usage = (await real.stub.Generate(pb.GenerateRequest(spec=spec))).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(answer.started.prompt_token_ids), 12)


async def test_idn_03_cancelling_several_choices(scripted_model: Path) -> None:
    async with scripted_service(scripted_model, max_model_len=4200, num_pages=1200, page_tokens=16, step_seconds=0.002) as service:
        spec = generation_spec(Request("x:", n=4, max_tokens=4096, ignore_eos=True))
        call = service.stub.GenerateStream(pb.GenerateStreamRequest(spec=spec))
        await until_first_token(call)
        call.cancel()
        state = await service.until_at_rest()
        num_steps = len(service.worker.steps)
        assert state.num_waiting == 0 and not service.worker._lanes.live
        assert (await service.metric("requests_running"), service.num_ended("cancelled")) == (0, 1)
        await asyncio.sleep(0.05)
        assert len(service.worker.steps) == num_steps


async def test_idn_04_there_is_no_best_of() -> None:
    assert not [name for message in (pb.GenerationSpec, pb.SamplingParams) for name in message.DESCRIPTOR.fields_by_name if "best" in name]


async def test_smp_01_others_do_not_change_a_seeded_request(real: Service) -> None:
    ask = {"seed": 1234, "temperature": 0.9, "max_tokens": 20, "ignore_eos": True}
    solo = await real.stream("Once upon", **ask)
    mixed: list[dict[str, Any]] = [
        {},
        {"top_k": 9},
        {"repetition_penalty": 1.4},
        {"min_p": 0.2},
        {"temperature": 0.3},
        {"seed": 2},
        {"n": 2},
    ]
    for asked in ([{}], [{"seed": 77}], mixed):
        for _ in range(3):
            others = [asyncio.ensure_future(real.unary("Other", **{"temperature": 1.0, "max_tokens": 25, **fields})) for fields in asked]
            assert (await real.stream("Once upon", **ask)).said == solo.said
            await asyncio.gather(*others)


async def test_smp_02_choices_differ_and_come_again(real: Service) -> None:
    ask = {"seed": 5, "n": 3, "temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    async with AsyncClient(f"127.0.0.1:{real.server.plane.ports['address']}") as client:
        first, second = await client.generate("Once upon", **ask), await client.generate("Once upon", **ask)
        alone = await client.generate("Once upon", **{**ask, "n": 1})
    tokens = [choice.token_ids for choice in first.choices]
    assert tokens == [choice.token_ids for choice in second.choices] and len(set(tokens)) == 3
    assert tokens[0] == alone.token_ids
    assert [list(choice.token_ids) for choice in (await real.ask("Once upon", **ask)).choices] == [list(ids) for ids in tokens]


async def test_smp_06_nothing_left_to_draw(real: Service) -> None:
    canary = await real.unary("Canary", temperature=0, max_tokens=4)
    message = await real.refusal("x", regex="ab?", min_tokens=9, max_tokens=20)
    assert "min_tokens" in message or "constraint" in message
    everything = await real.ask("Canary", temperature=0, max_tokens=4, logit_bias=dict.fromkeys(range(320), -100.0))
    assert everything.token_ids == canary.token_ids  # the same bias on all tokens changes nothing
    assert (await real.unary("Canary", temperature=0, max_tokens=4)).said == canary.said
