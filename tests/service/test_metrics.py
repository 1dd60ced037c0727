"""What a scrape shows of a service that is used and disturbed."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from fakes.text.tokenizers import EOS
from grpc_health.v1 import health_pb2
from harness.service import Service, scripted_service, status_of
from harness.waiting import until, until_first_token

from clients.request import Request, generation_spec
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEN = range(10)


def stream(service: Service, name: str, timeout: float | None = None, **fields: object) -> grpc.aio.UnaryStreamCall:
    spec = generation_spec(Request(f"{name}:", **fields))
    return service.stub.GenerateStream(pb.GenerateStreamRequest(spec=spec), timeout=timeout)


async def drained(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def disturb(service: Service) -> None:
    """Preemptions, prefix hits, cancelled calls, duplicates, refusals, and a worker that dies and comes back."""
    long = [(2 - index, [97 + index] * 30 + [58]) for index in range(3)]
    calls = [asyncio.ensure_future(service.unary(token_ids=prompt, max_tokens=40, priority=priority)) for priority, prompt in long]
    await asyncio.gather(*calls)
    await asyncio.gather(*(service.unary(token_ids=[97] * 30 + [58], max_tokens=2) for _ in range(3)))
    call = stream(service, "x", max_tokens=60, request_id="x")
    await until_first_token(call)
    assert await status_of(service.unary("x:", request_id="x")) == "ALREADY_EXISTS"
    call.cancel()
    await service.refusal("x:", temperature=-1)
    assert await status_of(service.unary("x:", model="another")) == "NOT_FOUND"
    running = [asyncio.ensure_future(service.unary(f"run{index}:", max_tokens=30)) for index in range(2)]
    await until(lambda: service.num_admissions >= 9)
    await service.worker.kill()
    await service.worker.start()
    await asyncio.gather(*running)
    await service.until_at_rest()


@asynccontextmanager
async def small(model: Path, *flags: str, **options: object) -> AsyncIterator[Service]:
    """A service whose pool is too small for all that it is asked."""
    fields = {"num_pages": 24, "max_model_len": 96, "step_seconds": 0.001, **options}
    async with scripted_service(model, *flags, **fields) as service:
        yield service


def counters(samples: dict[str, float]) -> dict[str, float]:
    endings = ("_total", "_count", "_sum", "_bucket")
    return {name: value for name, value in samples.items() if name.partition("{")[0].endswith(endings)}


async def test_met_01_met_05_counters_never_fall_and_gauges_return(scripted_model: Path) -> None:
    async with small(scripted_model) as service:
        scrapes = [await service.samples()]
        work = asyncio.ensure_future(disturb(service))
        while not work.done():
            scrapes.append(await service.samples())
            await asyncio.sleep(0.02)
        await work
        scrapes.append(await service.samples())
        for before, after in itertools.pairwise(scrapes):
            fallen = {name for name, value in counters(before).items() if after.get(name, 0) < value}
            assert not fallen
        assert scrapes[-1]["preemptions_total"] > 0 and scrapes[-1]["prefix_hit_tokens_total"] > 0
        assert max(scrape["requests_running"] for scrape in scrapes) >= 1
        await assert_at_rest(service)


async def assert_at_rest(service: Service) -> None:
    samples = await service.samples()
    gauges = {name: value for name, value in samples.items() if name.startswith(("requests_running", "requests_waiting", "requests_held"))}
    assert gauges and not any(gauges.values())
    pages = {name: value for name, value in samples.items() if name.startswith("pages{")}
    assert len(pages) == 4 and sum(pages.values()) == service.worker.options.num_pages
    assert not any(value for name, value in pages.items() if "referenced" in name or "fenced" in name)
    assert samples["workers"] == 1


async def test_met_02_nothing_that_a_client_says_becomes_a_label(scripted_model: Path) -> None:
    async with small(scripted_model) as service:
        await disturb(service)
        warm = (await service.samples()).keys()
        for index in range(50):
            secret = f"secret{index}"
            for fields in ({"model": secret}, {"request_id": secret, "cache_salt": secret}, {"stop": [secret, ""]}):
                await status_of(service.unary(f"{secret}:", max_tokens=1, **fields))
        await status_of(service.unary("x:", regex="(secret"))
        for _ in range(5):
            await service.worker.kill()
            await service.worker.start()
            await service.unary("x:", max_tokens=1)
        cold = (await service.samples()).keys()
        assert not [name for name in cold if "secret" in name]
        assert cold == warm


async def test_met_04_each_request_is_counted_once_by_outcome(scripted_model: Path) -> None:
    flags = ("--max-num-seqs", "10", "--worker-grace-seconds", "0.3", "--hang-seconds", "60")
    async with scripted_service(scripted_model, *flags, num_pages=2000, step_seconds=0.002) as service:
        ends = service.plan([*b"ab", EOS])
        answers = await all_of(service.stream(f"{ends}:") for _ in TEN)
        answers += await all_of(service.unary("x:", max_tokens=4) for _ in TEN)
        answers += await all_of(service.stream("x:", max_tokens=4, n=3) for _ in TEN)
        delivered = sum(len(choice.token_ids) for answer in answers for choice in answer.choices)
        assert delivered == 10 * 3 + 10 * 4 + 10 * 12 == await service.metric("generation_tokens_total")
        prompts = sum(len(answer.started.prompt_token_ids) for answer in answers)
        assert prompts == await service.metric("prompt_tokens_total")
        await all_of(service.refusal("x:", top_p=2) for _ in TEN)
        await cancel_twenty(service)
        calls = [stream(service, "late", timeout=0.3, max_tokens=240) for _ in TEN]
        assert await all_of(status_of(drained(call)) for call in calls) == ["DEADLINE_EXCEEDED"] * 10
        await service.until_at_rest()
        calls = [stream(service, "lost", max_tokens=200) for _ in TEN]
        await all_of(until_first_token(call) for call in calls)
        await service.worker.kill()
        assert await all_of(status_of(drained(call)) for call in calls) == ["UNAVAILABLE"] * 10
        await service.worker.start()
        await service.server.health_becomes(health_pb2.HealthCheckResponse.SERVING)
        await service.unary("x:", max_tokens=1)
        await assert_counts(service)


async def cancel_twenty(service: Service) -> None:
    """Cancel ten requests while they generate, and ten that wait for them."""
    running = [stream(service, "run", max_tokens=240) for _ in TEN]
    await all_of(until_first_token(call) for call in running)
    queued = [stream(service, "wait", max_tokens=240) for _ in TEN]
    await all_of(call.read() for call in queued)
    while (await service.state()).num_waiting < 10:
        await asyncio.sleep(0.005)
    for call in (*queued, *running):
        call.cancel()
    await service.until_at_rest()


async def assert_counts(service: Service) -> None:
    samples = await service.samples()
    outcomes = {name.split('"')[1]: value for name, value in samples.items() if name.startswith("requests_finished_total") and value}
    assert outcomes == {"stop": 10, "length": 21, "cancelled": 20, "deadline_exceeded": 10, "unavailable": 10}
    assert samples["requests_received_total"] == sum(outcomes.values())
    refused = [value for name, value in samples.items() if name.startswith("calls_total") and "invalid_argument" in name]
    assert sum(refused) == 20  # ten, asked both ways


async def all_of(calls: object) -> list[object]:
    awaitables: list[Awaitable[object]] = list(calls)
    return list(await asyncio.gather(*awaitables))
