"""Calls that end early, from the client to the worker: cancelled, killed, or past their deadline."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2
from harness.running_control_plane import RunningControlPlane, running

from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.wire.columns import unpack_ids
from pypto_serving.worker.v1 import worker_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
STEP_SECONDS = 0.1


def slow(worker: FakeWorker, seconds: float = STEP_SECONDS, **options: object) -> FakeWorker:
    worker.options = replace(worker.options, step_seconds=seconds, **options)
    return worker


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def status_of(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


def spec(prompt: list[int], max_tokens: int = 40) -> pb.GenerationSpec:
    return pb.GenerationSpec(token_ids=pb.TokenIds(ids=prompt), stopping=pb.StoppingParams(max_tokens=max_tokens))


def generate(server: RunningControlPlane, prompt: list[int], seconds: float | None = None, **fields: object) -> Awaitable[object]:
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
    return stub.Generate(pb.GenerateRequest(spec=spec(prompt, **fields)), timeout=seconds)


def stream(channel: grpc.aio.Channel, prompt: list[int], seconds: float | None = None, max_tokens: int = 40) -> grpc.aio.UnaryStreamCall:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return stub.GenerateStream(pb.GenerateStreamRequest(spec=spec(prompt, max_tokens)), timeout=seconds)


async def read_deltas(call: grpc.aio.UnaryStreamCall, count: int) -> None:
    while count:
        count -= (await call.read()).HasField("delta")


def admissions(worker: FakeWorker, prompt: list[int]) -> list[worker_pb2.LaneAdmission]:
    """Lanes that were opened for a prompt."""
    opened = [admission for step in worker.steps for admission in step.admissions]
    return [admission for admission in opened if unpack_ids(admission.token_ids, "").tolist()[: len(prompt)] == prompt]


def num_ended(server: RunningControlPlane, reason: str) -> float:
    return server.plane._engine_metrics._outcomes[(reason,)]


async def state(server: RunningControlPlane) -> admin_pb2.GetStateResponse:
    return await admin_pb2_grpc.AdminServiceStub(server.channel("admin")).GetState(admin_pb2.GetStateRequest(with_sequences=True))


async def until_at_rest(server: RunningControlPlane, worker: FakeWorker) -> None:
    """No call, no sequence, no lane, and no page that is not free or cached."""
    while True:
        found = await state(server)
        pages = found.workers[0].pages
        if not (found.num_calls or found.sequences or pages.referenced or pages.fenced or worker._lanes.live):
            return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["cancel", "deadline"])
async def test_can_01_a_queued_request_ends_at_once_and_reaches_no_worker(model: Path, worker: FakeWorker, way: str) -> None:
    slow(worker, 0.02)
    async with running(model, "--worker", worker.address, "--max-num-seqs", "1") as server:
        await server.health_becomes(SERVING)
        first = asyncio.ensure_future(generate(server, [97]))
        await until(lambda: admissions(worker, [97]))
        second = stream(server.channel(), [98], seconds=0.1 if way == "deadline" else None)
        third = asyncio.ensure_future(generate(server, [99], max_tokens=2))
        await second.read()
        while (await state(server)).num_waiting < 2:
            await asyncio.sleep(0.005)
        if way == "cancel":
            second.cancel()
        else:
            assert await status_of(second.read()) is grpc.StatusCode.DEADLINE_EXCEEDED
        while (await state(server)).num_waiting > 1:
            await asyncio.sleep(0.005)
        assert not first.done()
        await asyncio.gather(first, third)
        assert (len(admissions(worker, [98])), len(admissions(worker, [99]))) == (0, 1)
        assert num_ended(server, "cancelled" if way == "cancel" else "deadline_exceeded") == 1
        await until_at_rest(server, worker)


_CLIENT = """
import sys, grpc
from pypto_serving.inference.v1 import inference_pb2 as pb, inference_pb2_grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[97]), stopping=pb.StoppingParams(max_tokens=40))
    for event in inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(spec=spec)):
        print(event.WhichOneof("event"), flush=True)
"""


async def leave_by_cancel(server: RunningControlPlane) -> None:
    call = stream(server.channel(), [97])
    await read_deltas(call, 3)
    call.cancel()


async def leave_by_closing(server: RunningControlPlane) -> None:
    channel = server.channel()
    await read_deltas(stream(channel, [97]), 3)
    await channel.close()


async def leave_by_dying(server: RunningControlPlane) -> None:
    address = f"127.0.0.1:{server.plane.ports['address']}"
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", _CLIENT, address, stdout=asyncio.subprocess.PIPE)
    for _ in range(4):
        await client.stdout.readline()
    client.send_signal(signal.SIGKILL)
    await client.communicate()


async def leave_a_unary_call(server: RunningControlPlane) -> None:
    call = generate(server, [97])
    waiter = asyncio.ensure_future(asyncio.wait_for(call, 4 * STEP_SECONDS))
    with pytest.raises(TimeoutError):
        await waiter


@pytest.mark.parametrize("leave", [leave_by_cancel, leave_by_closing, leave_by_dying, leave_a_unary_call])
async def test_can_03_the_work_stops_with_its_client(
    model: Path, worker: FakeWorker, leave: Callable[[RunningControlPlane], Awaitable[None]]
) -> None:
    slow(worker)
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        num_tasks = len(asyncio.all_tasks())
        await leave(server)
        num_steps = len(worker.steps)
        await until_at_rest(server, worker)
        assert len(worker.steps) <= num_steps + 3  # one that was on its way, one more, and the release
        assert num_ended(server, "cancelled") == 1
        await until(lambda: len(asyncio.all_tasks()) <= num_tasks)


async def test_can_04_pages_of_a_cancelled_request_are_not_reused_under_a_running_step(model: Path, worker: FakeWorker) -> None:
    slow(worker, 0.15, num_pages=9)  # eight for one sequence of 28 tokens, and the scratch page
    await worker.kill()
    await worker.start()
    async with running(model, "--worker", worker.address, "--no-prefix-cache") as server:
        await server.health_becomes(SERVING)
        first, second = [97] * 20, [100] * 20
        call = stream(server.channel(), first, max_tokens=8)
        await until(lambda: admissions(worker, first))
        call.cancel()
        response = await generate(server, second, max_tokens=8)
        assert response.choices[0].text == "efghijkl"
        (one,), (other,) = admissions(worker, first), admissions(worker, second)
        pages_of = [set(unpack_ids(admission.page_tables[0].page_ids, "").tolist()) for admission in (one, other)]
        assert pages_of[0] & pages_of[1]
        releasing = next(step for step in worker.steps if step.released_lanes)
        admitting = worker.steps[[other in step.admissions for step in worker.steps].index(True)]
        assert admitting.acked_step_id >= releasing.step_id - 1  # all steps that might write into them are over
        assert response.choices[0].finished.timing.num_readmissions == 0


@pytest.mark.parametrize("place", ["queue", "prefill", "decode"])
async def test_can_05_a_deadline_ends_the_work_wherever_it_is(model: Path, worker: FakeWorker, place: str) -> None:
    slow(worker, 0.02 if place == "queue" else STEP_SECONDS)
    flags = ("--max-num-seqs", "1", "--max-step-tokens", "4")
    async with running(model, "--worker", worker.address, *flags) as server:
        await server.health_becomes(SERVING)
        others = [asyncio.ensure_future(generate(server, [97]))] if place == "queue" else []
        if others:
            await until(lambda: admissions(worker, [97]))
        prompt = [98] * (40 if place == "prefill" else 1)
        call = stream(server.channel(), prompt, seconds=2.5 * STEP_SECONDS, max_tokens=20)
        assert await status_of(_drain(call)) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: num_ended(server, "deadline_exceeded") == 1)
        num_steps = len(worker.steps)
        assert bool(admissions(worker, prompt)) is (place != "queue")
        await asyncio.gather(*others)
        await until_at_rest(server, worker)
        assert num_ended(server, "cancelled") == 0
        if not others:  # one that was on its way, one more, and the release
            assert len(worker.steps) <= num_steps + 3


async def _drain(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
