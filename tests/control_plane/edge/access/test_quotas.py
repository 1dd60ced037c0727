"""Quotas of keys, as callers and operators see them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from harness.service import Service, scripted_service, status_of

from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc

_KEYS = """
acme-1     name=acme requests=2
acme-2     name=acme tokens-per-minute=400
someone    tokens-per-minute=100
"""


class Tenant:
    """Somebody with a key. Each character of a prompt is a token, and there is one before the first."""

    def __init__(self, service: Service, key: str) -> None:
        self.stub = inference_pb2_grpc.InferenceServiceStub(service.server.channel())
        self.metadata = (("authorization", f"Bearer {key}"),)

    async def ask(self, prompt: str = "a:", max_tokens: int = 2, **fields: object) -> pb.GenerateResponse:
        spec = pb.GenerationSpec(text=prompt, stopping=pb.StoppingParams(max_tokens=max_tokens), **fields)
        return await self.stub.Generate(pb.GenerateRequest(spec=spec), metadata=self.metadata)

    async def begin(self) -> grpc.aio.UnaryStreamCall:
        spec = pb.GenerationSpec(text="a:", stopping=pb.StoppingParams(max_tokens=200))
        call = self.stub.GenerateStream(pb.GenerateStreamRequest(spec=spec), metadata=self.metadata)
        assert (await call.read()).HasField("started")
        return call

    async def refused(self, **fields: object) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.ask(**fields)
        return refused.value


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / "client-keys").write_text(_KEYS)
    (tmp_path / "admin-keys").write_text("operator\n")
    return tmp_path / "client-keys"


@pytest.fixture
async def service(model: Path, keys: Path) -> AsyncIterator[Service]:
    flags = ("--api-keys-file", str(keys), "--admin-key-file", str(keys.parent / "admin-keys"))
    async with scripted_service(model, *flags, step_seconds=0.05) as service:
        yield service


async def test_keys_of_one_name_share_their_places_and_get_them_back(service: Service) -> None:
    first, second = Tenant(service, "acme-1"), Tenant(service, "acme-2")
    calls = [await first.begin(), await second.begin()]
    error = await second.refused()
    assert (error.code(), error.details()) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "key 'acme' is over its quota of requests at once: 2 run or wait, limit 2; retry in 1.0 s",
    )
    metadata = dict(error.trailing_metadata())
    assert (metadata["retry-after-ms"], metadata["grpc-retry-pushback-ms"]) == ("1000", "1000")
    assert await status_of(first.begin()) == "RESOURCE_EXHAUSTED"
    assert (await Tenant(service, "someone").ask()).choices
    calls[0].cancel()
    while await status_of(second.ask()) != "OK":
        await asyncio.sleep(0.01)


async def test_tokens_of_prompts_and_of_all_choices_are_used_up_and_flow_in_again(service: Service) -> None:
    someone = Tenant(service, "someone")
    await someone.ask("x" * 50 + ":", max_tokens=20, n=2)
    error = await someone.refused(prompt="x" * 45 + ":")
    assert "over its quota of tokens a minute: " in error.details()
    assert 0 < int(dict(error.trailing_metadata())["retry-after-ms"]) <= (52 + 40 + 47 - 100) / 100 * 60_000
    assert (await someone.ask()).choices  # a short one still fits
    error = await someone.refused(prompt="x" * 100 + ":")
    assert (error.code(), error.details().partition(",")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "the prompt has 102 tokens")


def limits(metadata: object) -> dict[str, str]:
    return {name.removeprefix("x-ratelimit-"): value for name, value in metadata if name.startswith("x-ratelimit-")}


async def test_calls_say_what_is_left_whether_they_are_taken_in_or_not(service: Service) -> None:
    acme = Tenant(service, "acme-1")
    calls = [await acme.begin(), await acme.begin()]
    first, second = [limits(await call.initial_metadata()) for call in calls]
    assert [first["limit-requests"], first["remaining-requests"], second["remaining-requests"]] == ["2", "1", "0"]
    assert first["limit-tokens"] == "400" and int(second["remaining-tokens"]) < int(first["remaining-tokens"]) < 400
    refused = limits((await acme.refused()).trailing_metadata())
    assert (refused["remaining-requests"], refused["reset-requests"]) == ("0", "1s")
    spec = pb.GenerationSpec(text="a:", stopping=pb.StoppingParams(max_tokens=1))
    someone = Tenant(service, "someone")
    call = someone.stub.Generate(pb.GenerateRequest(spec=spec), metadata=someone.metadata)
    await call
    assert limits(await call.trailing_metadata()) == {"limit-tokens": "100", "remaining-tokens": "97", "reset-tokens": "1.8s"}


async def test_what_generates_nothing_is_free(service: Service) -> None:
    someone = Tenant(service, "someone")
    for _ in range(5):
        tokens = await someone.stub.Tokenize(pb.TokenizeRequest(text="x" * 90), metadata=someone.metadata)
        await someone.stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids), metadata=someone.metadata)
        await someone.stub.ListModels(pb.ListModelsRequest(), metadata=someone.metadata)
    for fields in ({"max_tokens": 10_000}, {"priority": -1}, {"model": "other"}):
        assert await status_of(someone.ask("x" * 90, **fields)) in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert (await someone.ask("x" * 90)).choices


async def test_other_limits_count_from_the_next_call_on_and_with_what_was_used(service: Service, keys: Path) -> None:
    someone = Tenant(service, "someone")
    await someone.ask("x" * 80 + ":")
    keys.write_text("someone tokens-per-minute=40 requests=1\n")
    assert "limit 40" in (await someone.refused(prompt="x")).details()
    keys.write_text("someone tokens-per-minute=1000 requests=1\n")
    running = await someone.begin()
    assert "1 run or wait, limit 1" in (await someone.refused()).details()
    keys.write_text("someone\n")
    assert (await someone.ask("x" * 200)).choices
    keys.write_text("another\n")
    assert await status_of(someone.ask()) == "UNAUTHENTICATED"
    assert (await running.read()).HasField("delta")  # it goes on with what it began with


async def test_usage_is_counted_by_name(service: Service) -> None:
    acme, someone = Tenant(service, "acme-2"), Tenant(service, "someone")
    await acme.ask("12345", max_tokens=3, n=2)
    await someone.ask("12", max_tokens=40)
    await someone.refused(prompt="x" * 99)
    call = await acme.begin()
    samples = await service.samples()
    acmes = {name: value for name, value in samples.items() if '{key="acme"' in name and "generation" not in name}
    assert acmes == {
        'key_requests_total{key="acme"}': 2,
        'key_prompt_tokens_total{key="acme"}': 6 + 3,
        'key_requests_live{key="acme"}': 1,
        'key_refusals_total{key="acme",quota="tokens"}': 0,
        'key_refusals_total{key="acme",quota="requests"}': 0,
    }
    assert samples['key_generation_tokens_total{key="acme"}'] >= 6
    unnamed = [samples[f'key_{name}{{key="(unnamed)"}}'] for name in ("prompt_tokens_total", "generation_tokens_total", "requests_live")]
    assert unnamed == [3, 40, 0]
    assert samples['key_refusals_total{key="(unnamed)",quota="tokens"}'] == samples['requests_finished_total{reason="over_quota"}'] == 1
    call.cancel()


async def test_without_keys_there_is_no_usage_by_key(model: Path) -> None:
    async with scripted_service(model) as service:
        await Tenant(service, "ignored").ask()
        assert not [name for name in await service.samples() if name.startswith("key_")]
