"""Recordings of a whole service, as operators get them."""

import asyncio

import grpc.aio
import pytest
from harness.service import Service
from harness.trace_rules import CheckedTrace

from clients.chrome_trace import ChromeTrace
from pypto_serving.admin.v1 import admin_pb2 as pb
from pypto_serving.profile.v1 import profile_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def start(service: Service, level: int = profile_pb2.LEVEL_STEPS, **fields: float) -> pb.StartProfileResponse:
    return await service.admin.StartProfile(pb.StartProfileRequest(level=level, **fields))


async def stop(service: Service, recording_id: str = "") -> ChromeTrace:
    trace = ChromeTrace()
    async for part in service.admin.StopProfile(pb.StopProfileRequest(recording_id=recording_id)):
        trace.add(part)
    return trace


async def test_one_trace_shows_requests_steps_and_the_device(real: Service) -> None:
    started = await start(real)
    assert [name.partition(" ")[0] for name in started.processes] == ["control", "worker"]
    await asyncio.gather(*(real.unary(f"number {index}:", max_tokens=8, request_id=f"r{index}") for index in range(4)))
    await real.until_at_rest()
    trace = await stop(real, started.recording_id)
    found = CheckedTrace(trace.events())
    assert not trace.notes
    assert {each["args"]["request_id"] for each in found.named("control plane", "request")} == {f"r{index}" for index in range(4)}
    assert len(found.named("control plane", "call")) == 4
    steps = [each["name"] for each in found.slices if found.threads[each["pid"], each["tid"]] == "device"]
    assert steps and all(name.startswith("step ") for name in steps)
    assert len(steps) == len(found.named("control plane", "send")) == len(found.named("control plane", "result"))


async def test_flows_go_from_request_to_step_to_token(real: Service) -> None:
    await start(real)
    await real.unary("hello:", max_tokens=3, request_id="r")
    found = CheckedTrace((await stop(real)).events())
    at = {(each["pid"], each["tid"], each["ts"]): each["name"] for each in sorted(found.slices, key=lambda each: each["dur"], reverse=True)}
    ways = [[at[point["pid"], point["tid"], point["ts"]] for point in flow] for flow in found.flows.values()]
    assert ["admit", "queue", "send", "decode"] in ways
    assert any(way[0] == "send" and way[1].startswith("step ") and way[2:] == ["result", "publish"] for way in ways)


async def test_operators_lie_inside_their_steps(real: Service) -> None:
    await start(real, profile_pb2.LEVEL_OPERATORS)
    await real.unary("hello:", max_tokens=4)
    trace = await stop(real)
    found = CheckedTrace(trace.events())
    [worker] = [pid for pid, name in found.processes.items() if name.startswith("worker")]
    tracks = {tid: name for (pid, tid), name in found.threads.items() if pid == worker}
    steps = [each for each in found.slices if each["pid"] == worker and tracks[each["tid"]] == "device"]
    operators = [each for each in found.slices if each["pid"] == worker and each["name"].startswith(("aten::", "pypto"))]
    inside = [any(s["ts"] - 200 <= o["ts"] and o["ts"] + o["dur"] <= s["ts"] + s["dur"] + 200 for s in steps) for o in operators]
    assert len(operators) > 20 and all(inside)
    assert "operators are those of the first" in trace.notes[0]


async def test_the_bound_is_told(real: Service) -> None:
    await start(real, max_spans=5)
    await real.unary("hello:", max_tokens=8)
    trace = await stop(real)
    assert trace.num_spans == 10 and len([note for note in trace.notes if "left out" in note]) == 2


async def test_an_older_worker_is_left_out(scripted: Service) -> None:
    started = await start(scripted)
    assert (list(started.processes), len(started.left_out)) == (["control plane"], 1)
    await scripted.unary("x:", max_tokens=2)
    trace = await stop(scripted)
    assert "older" in trace.notes[0] and CheckedTrace(trace.events()).named("control plane", "request")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_seconds": 601}, "max_seconds: 601.0, must be from 0.001 to 600.0"),
        ({"max_spans": 0}, "max_spans: 0, must be from 1"),
        ({"level": 9}, "level: 9"),
    ],
)
async def test_what_makes_no_sense_is_refused(scripted: Service, fields: dict[str, int], complaint: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=complaint) as caught:
        await start(scripted, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_refused_call_is_counted(scripted: Service) -> None:
    async def counted() -> list[float]:
        refused = (("StartProfile", "invalid_argument"), ("StartProfile", "failed_precondition"), ("StopProfile", "failed_precondition"))
        samples = await scripted.samples()
        return [samples.get(f'calls_total{{code="{code}",method="{method}"}}', 0) for method, code in refused]

    before = await counted()
    started = await start(scripted)
    for refused in (start(scripted, level=9), start(scripted), stop(scripted, "another")):
        with pytest.raises(grpc.aio.AioRpcError):
            await refused
    await stop(scripted, started.recording_id)
    assert [after - count for after, count in zip(await counted(), before, strict=True)] == [1, 1, 1]


async def test_one_recording_runs_at_a_time(scripted: Service) -> None:
    await start(scripted)
    with pytest.raises(grpc.aio.AioRpcError, match="stop it first") as caught:
        await start(scripted)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await stop(scripted)
    with pytest.raises(grpc.aio.AioRpcError, match="no recording") as caught:
        await stop(scripted)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
