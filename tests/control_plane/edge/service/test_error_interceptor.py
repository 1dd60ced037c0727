"""Statuses of what never reaches a handler, or is not ours."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pypto_serving.inference.v1 import inference_pb2

HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.fixture
async def plane() -> AsyncIterator[ScriptedControlPlane]:
    async with scripted_control_plane() as plane:
        yield plane


async def garbage(plane: ScriptedControlPlane, method: str) -> grpc.aio.AioRpcError:
    """How bytes that are no message are answered."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == REFLECTION:
            await plane.channel.stream_stream(method)(iter([b"\xff"])).read()
        elif method.endswith("Watch"):
            await plane.channel.unary_stream(method)(b"\xff").read()
        else:
            await plane.channel.unary_unary(method)(b"\xff")
    return caught.value


@pytest.mark.parametrize("method", [f"{HEALTH}/Check", f"{HEALTH}/Watch", REFLECTION])
async def test_what_is_no_message_is_refused_by_every_service(
    plane: ScriptedControlPlane, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    error = await garbage(plane, method)
    assert (error.code(), "is not a valid" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert caplog.text == ""


async def test_a_status_that_a_handler_of_another_service_chooses_is_left_alone(plane: ScriptedControlPlane) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health_pb2_grpc.HealthStub(plane.channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_answers_one_request_after_the_other(plane: ScriptedControlPlane) -> None:
    stream = reflection_pb2_grpc.ServerReflectionStub(plane.channel).ServerReflectionInfo()
    for _ in range(2):
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await stream.read()).list_services_response.service
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_calls_of_other_services_that_are_cancelled_are_quiet(plane: ScriptedControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    before = {method: count for method, count in plane.calls._calls.items() if count}
    watch = health_pb2_grpc.HealthStub(plane.channel).Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    info = reflection_pb2_grpc.ServerReflectionStub(plane.channel).ServerReflectionInfo()
    await info.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await info.read()
    watch.cancel()
    info.cancel()
    await asyncio.sleep(0.05)
    assert {method: count for method, count in plane.calls._calls.items() if count} == before
    assert caplog.text == ""


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "Tokenize"])
async def test_net_03_call_that_ends_without_a_message_gets_a_status_and_is_counted(plane: ScriptedControlPlane, method: str) -> None:
    path = f"/pypto_serving.inference.v1.InferenceService/{method}"
    call = plane.channel.stream_stream(path)(iter([])) if method == "GenerateStream" else plane.channel.stream_unary(path)(iter([]))
    with pytest.raises(grpc.aio.AioRpcError, match=f"the call ends without a {method}Request"):
        await (call.read() if method == "GenerateStream" else call)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert plane.calls._calls[method, "invalid_argument"] == 1


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "Tokenize"])
async def test_hst_07_a_call_that_is_cancelled_before_its_message_is_there_is_counted(plane: ScriptedControlPlane, method: str) -> None:
    call = plane.channel.stream_unary(f"/pypto_serving.inference.v1.InferenceService/{method}")()
    await asyncio.sleep(0)
    await plane.stub.GetServer(inference_pb2.GetServerRequest())  # the server has the one before it, too
    before = sum(plane.calls._calls.values())
    call.cancel()
    async with asyncio.timeout(10):
        while sum(plane.calls._calls.values()) == before:
            await asyncio.sleep(0.01)
    assert sum(plane.calls._calls.values()) == before + 1
    assert not plane.calls._calls[method, "ok"]
