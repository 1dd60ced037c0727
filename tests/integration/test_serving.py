"""One control plane and one worker, used as their users would."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from harness.checkpoints import TinyCheckpoint
from harness.processes import ServingProcess, control_plane, worker

from clients import AsyncClient, Client, ServingError
from clients.results import Delta

pytestmark = pytest.mark.slow


#: There is no collector, of which requests notice nothing; dropped spans have metrics.
NO_COLLECTOR = ("--otlp-endpoint", "http://127.0.0.1:1")


@pytest.fixture(scope="module")
def model(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("qwen3")


@pytest.fixture(scope="module")
def one_worker(model: Path) -> Iterator[ServingProcess]:
    with worker(model, *NO_COLLECTOR) as process:
        yield process


@pytest.fixture(scope="module")
def serving(model: Path, one_worker: ServingProcess) -> Iterator[ServingProcess]:
    with control_plane(model, [one_worker], *NO_COLLECTOR) as control:
        yield control.wait_until_ready()


@pytest.fixture
def client(serving: ServingProcess) -> Iterator[Client]:
    with Client(serving.address) as client:
        yield client


def test_stream_and_unary_give_the_same(client: Client) -> None:
    request = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0.8, "seed": 3}
    streamed = list(client.stream(**request))
    whole = client.generate(**request)
    assert "".join(event.text for event in streamed) == whole.text
    assert [token for event in streamed if isinstance(event, Delta) for token in event.token_ids] == list(whole.token_ids)
    assert len(whole.token_ids) == whole.usage.completion_tokens <= 40


def test_several_choices_share_the_prompt_and_differ(client: Client) -> None:
    request = {"prompt": "Once upon a time " * 10, "max_tokens": 12, "temperature": 0.9, "seed": 5, "ignore_eos": True}
    several = client.generate(**request, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].token_ids == client.generate(**request).token_ids
    assert len({choice.token_ids for choice in several.choices}) == 3
    assert several.usage.completion_tokens == 36


def test_a_constraint_restricts_the_answer(client: Client) -> None:
    completion = client.generate("A number:", regex="[1-9][0-9]{3}", temperature=1.0, seed=2)
    assert 1000 <= int(completion.text) <= 9999 and completion.finish_reason == "stop"
    assert client.generate("Yes?", alternatives=["yes", "no"], seed=1).text in ("yes", "no")


def test_a_chat_is_rendered_with_the_template(client: Client) -> None:
    tokens = client.tokenize(messages=[{"role": "user", "content": "Hello"}])
    assert client.detokenize(tokens.token_ids) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    completion = client.generate(messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    assert completion.usage.prompt_tokens == len(tokens.token_ids)


async def test_other_sequences_change_nothing(serving: ServingProcess) -> None:
    requests = [
        {"prompt": f"Tale {i} of " * (1 + i % 7), "max_tokens": 24, "temperature": i % 2 * 1.1, "seed": i, "ignore_eos": True}
        for i in range(32)
    ]
    async with AsyncClient(serving.address) as client:
        solo = [(await client.generate(**request)).token_ids for request in requests]
        together = await asyncio.gather(*(client.generate(**request) for request in requests))
    assert [completion.token_ids for completion in together] == solo


def test_a_second_turn_takes_its_prefix_from_the_cache(client: Client) -> None:
    first = client.generate(token_ids=list(range(20, 84)), max_tokens=32, temperature=0, ignore_eos=True)
    again = client.generate(token_ids=[*range(20, 84), *first.token_ids], max_tokens=4, temperature=0)
    assert again.usage.cached_tokens >= 80
    assert client.generate(token_ids=list(range(20, 84)), max_tokens=32, temperature=0, ignore_eos=True).token_ids == first.token_ids


def test_other_salts_share_no_pages(client: Client) -> None:
    prompt = list(range(100, 164))
    client.generate(token_ids=prompt, max_tokens=1, cache_salt="a")
    assert client.generate(token_ids=prompt, max_tokens=1, cache_salt="b").usage.cached_tokens == 0
    assert client.generate(token_ids=prompt, max_tokens=1, cache_salt="a").usage.cached_tokens == 48


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"temperature": -0.1}, "INVALID_ARGUMENT", "temperature"),
        ({"temperature": float("nan")}, "INVALID_ARGUMENT", "temperature"),
        ({"top_p": 1.5}, "INVALID_ARGUMENT", "top_p"),
        ({"token_ids": [5, 1024], "prompt": None}, "INVALID_ARGUMENT", "1024"),
        ({"max_tokens": 5000}, "INVALID_ARGUMENT", "4096"),
        ({"stop": [""]}, "INVALID_ARGUMENT", "stop"),
        ({"n": 65}, "INVALID_ARGUMENT", "n = 65"),
        ({"regex": "("}, "INVALID_ARGUMENT", "constraint"),
        ({"regex": "a+", "ignore_eos": True}, "INVALID_ARGUMENT", "ignore_eos"),
    ],
)
def test_a_refusal_names_the_field(client: Client, fields: dict[str, object], code: str, message: str) -> None:
    with pytest.raises(ServingError) as refusal:
        client.generate(**{"prompt": "x", **fields})
    assert refusal.value.code.name == code
    assert message in refusal.value.message


async def test_refusals_do_not_disturb_running_streams(serving: ServingProcess) -> None:
    request = {"prompt": "A long story", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    async with AsyncClient(serving.address) as client:
        solo = (await client.generate(**request)).token_ids
        running = asyncio.gather(*(client.generate(**request) for _ in range(4)))
        while not running.done():
            with pytest.raises(ServingError):
                await client.generate("x", top_k=2**31, logit_bias={5000: 1.0})
        assert {completion.token_ids for completion in await running} == {solo}


async def test_a_cancelled_stream_gives_its_pages_back(serving: ServingProcess) -> None:
    async with AsyncClient(serving.address) as client:
        async with contextlib.aclosing(client.stream("Endless", max_tokens=3000, ignore_eos=True)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
        await _until(lambda: _pages_in_use(serving) == 0)


def _metric(serving: ServingProcess, name: str) -> float:
    with urlopen(serving.metrics_url) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{", f"{name},")))


def _pages_in_use(serving: ServingProcess) -> float:
    return sum(_metric(serving, f'pypto_serving_pages{{state="{state}"') for state in ("referenced", "fenced"))


async def _until(condition: object) -> None:
    assert callable(condition)
    for _ in range(500):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not come true")


def test_metrics_count_every_token_once(serving: ServingProcess, client: Client) -> None:
    before = _metric(serving, "pypto_serving_generation_tokens_total")
    completion = client.generate("Count me", max_tokens=17, ignore_eos=True)
    assert completion.usage.completion_tokens == 17
    assert _metric(serving, "pypto_serving_generation_tokens_total") - before == 17


def test_the_page_of_metrics_lists_every_metric(serving: ServingProcess, one_worker: ServingProcess) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for process in (serving, one_worker):
        with urlopen(process.metrics_url) as answer:
            families = [line.split()[2] for line in answer.read().decode().splitlines() if line.startswith("# TYPE ")]
        named = {family.removeprefix("pypto_serving_") for family in families}
        assert named and not [name for name in named if f"`{name}`" not in page and f"`{name}{{" not in page]


def test_the_control_plane_maps_no_torch(serving: ServingProcess) -> None:
    assert "libtorch" not in Path(f"/proc/{serving.pid}/maps").read_text()


def test_reflection_lists_the_service(serving: ServingProcess) -> None:
    with grpc.insecure_channel(serving.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    assert "pypto_serving.inference.v1.InferenceService" in {service.name for service in answer.list_services_response.service}


def test_the_command_line_streams_an_answer(serving: ServingProcess) -> None:
    command = [sys.executable, "-m", "clients", "generate", "Hello", "--target", serving.address, "--max-tokens", "8", "--json"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(answer.stdout.splitlines()[-1])["usage"]["completion_tokens"] <= 8


def test_the_command_line_shows_choices_apart(serving: ServingProcess) -> None:
    flags = ["--alternative", "yes", "-n", "3", "--target", serving.address]
    answer = subprocess.run([sys.executable, "-m", "clients", "generate", "Well?", *flags], check=True, capture_output=True, text=True)
    assert answer.stdout == "".join(f"--- choice {index} (stop)\nyes\n" for index in range(3))


async def test_a_full_queue_refuses_at_once(model: Path) -> None:
    limits = ["--max-queued-requests", "1", "--max-num-seqs", "1"]
    with worker(model) as one_worker, control_plane(model, [one_worker], *limits) as control:
        async with AsyncClient(control.wait_until_ready().address) as client:
            queued = [asyncio.create_task(client.generate("Long", max_tokens=3000, ignore_eos=True)) for _ in range(4)]
            done, running = await asyncio.wait(queued, return_when=asyncio.FIRST_COMPLETED)
            assert [task.exception().code.name for task in done] == ["RESOURCE_EXHAUSTED"] * len(done)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
