"""Quotas over front ends that are processes of their own, some of which are killed; and what OpenAI's client makes of a refusal."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from harness.processes import ServingProcess, control_plane
from harness.running_gateway import running_gateway
from openai import AsyncOpenAI, RateLimitError

from clients import AsyncClient, Credentials, ServingError
from clients.results import Delta, Event

pytestmark = pytest.mark.slow

_LONG = {"prompt": "Story", "temperature": 0.9, "ignore_eos": True}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def control(model: Path, device: ServingProcess, keys: Path) -> Iterator[ServingProcess]:
    keys.write_text("key-1 name=acme requests=4\n")
    flags = ("--frontends", "2", "--takeover", "--api-keys-file", str(keys))
    with control_plane(model, [device], *flags) as control:
        control.wait_until_ready()
        yield control


@asynccontextmanager
async def began(control: ServingProcess, seed: int, max_tokens: int = 450) -> AsyncIterator[AsyncGenerator[Event, None]]:
    """The events of a stream that was taken in, by a connection of its own, which one of the front ends gets."""
    credentials = Credentials(api_key="key-1")
    async with (
        AsyncClient(control.address, credentials=credentials, connect_seconds=20) as client,
        aclosing(client.stream(**_LONG, seed=seed, max_tokens=max_tokens)) as events,
    ):
        await anext(events)
        yield events


async def tokens(events: AsyncGenerator[Event, None]) -> list[int]:
    """All that a stream brings."""
    return [token_id async for event in events if isinstance(event, Delta) for token_id in event.token_ids]


async def refusal(control: ServingProcess) -> ServingError:
    """Why no other stream is taken in."""
    with pytest.raises(ServingError) as refused:
        async with began(control, 100):
            pass
    return refused.value


async def test_places_hold_over_all_front_ends_and_a_changed_file_counts_at_once(control: ServingProcess, keys: Path) -> None:
    async with AsyncExitStack() as streams:
        for seed in range(4):
            await streams.enter_async_context(began(control, seed, max_tokens=1800))
        errors = await asyncio.gather(*(refusal(control) for _ in range(8)))
        assert {(error.code.name, error.message, error.retry_after_seconds) for error in errors} == {
            ("RESOURCE_EXHAUSTED", "key 'acme' is over its quota of requests at once: 4 run or wait, limit 4; retry in 1.0 s", 1.0)
        }
        keys.write_text("key-1 name=acme requests=5\n")
        await streams.enter_async_context(began(control, 4))
        assert "limit 5" in (await refusal(control)).message


@pytest.mark.parametrize("part", ["scheduler", "0", "1"])
async def test_streams_of_a_name_that_has_used_everything_outlive_every_part(control: ServingProcess, keys: Path, part: str) -> None:
    async with AsyncExitStack() as streams:
        undisturbed = [await tokens(await streams.enter_async_context(began(control, seed))) for seed in range(4)]
        running = [await streams.enter_async_context(began(control, seed)) for seed in range(4)]
        keys.write_text("key-1 name=acme requests=4 tokens-per-minute=30\n")
        assert "over its quota" in (await refusal(control)).message
        os.kill(control.parts[part], signal.SIGKILL)
        assert await asyncio.gather(*map(tokens, running)) == undisturbed


async def test_openais_client_sees_a_rate_limit_and_when_to_come_back(control: ServingProcess, keys: Path) -> None:
    keys.write_text("key-1 name=acme tokens-per-minute=60\n")
    async with running_gateway(control.address) as gateway:
        sdk = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="key-1", max_retries=0)
        ask = {"model": "", "prompt": "Story", "max_tokens": 100, "extra_body": {"ignore_eos": True}}
        taken_in = await sdk.completions.with_raw_response.create(**ask)
        assert taken_in.parse().usage.completion_tokens == 100
        assert taken_in.headers["x-ratelimit-limit-tokens"] == "60" and 0 < int(taken_in.headers["x-ratelimit-remaining-tokens"]) < 60
        with pytest.raises(RateLimitError) as refused:
            await sdk.completions.create(**ask)
        await sdk.close()
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert "key 'acme' is over its quota of tokens a minute" in refused.value.message
    headers = refused.value.response.headers
    assert 0 < int(headers["retry-after-ms"]) <= int(headers["retry-after"]) * 1000 <= 120_000
    assert headers["x-ratelimit-remaining-tokens"] == "0" and float(headers["x-ratelimit-reset-tokens"].removesuffix("s")) > 30
