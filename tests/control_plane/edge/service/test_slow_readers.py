"""Clients that read slowly, not at all, or vanish, at a real gRPC server with a scripted engine behind it."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane
from fakes.network.tcp_proxy import TcpProxy

from control_plane.edge import client_server
from control_plane.edge.config import StreamOptions
from control_plane.engine.ports import Failure
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc

#: Bytes that a client takes without reading: one message.
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))
LONG = [7] * 3000
PATIENT = StreamOptions(max_unwritten_tokens=200)
IMPATIENT = StreamOptions(max_unwritten_tokens=200, slow_reader_seconds=0.2)


@asynccontextmanager
async def long_plane(limits: StreamOptions) -> AsyncIterator[ScriptedControlPlane]:
    async with scripted_control_plane(script=LONG, stream_options=limits) as plane:
        plane.join_worker(max_model_len=4000)
        yield plane


def slow_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=SMALL_WINDOW)


def stream_of(channel: grpc.aio.Channel, seconds: float | None = None) -> grpc.aio.UnaryStreamCall:
    stopping = pb.StoppingParams(max_tokens=len(LONG))
    spec = pb.GenerationSpec(text="Hi", request_id="slow", output=pb.OutputOptions(logprobs=True), stopping=stopping)
    return inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(spec=spec), timeout=seconds)


async def until(condition: object) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def until_held(plane: ScriptedControlPlane) -> None:
    await until(lambda: plane.engine.held == {"slow"})


async def rest_of(stream: grpc.aio.UnaryStreamCall) -> list[pb.GenerateStreamResponse]:
    events = []
    while (event := await stream.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def test_can_07_a_reader_that_stops_is_held_and_gets_everything_later() -> None:
    async with long_plane(PATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        stream = stream_of(channel)
        await until_held(plane)
        in_flight = 3
        assert plane.live._streams["slow"].backlog.num_tokens <= PATIENT.max_unwritten_tokens + in_flight
        for _ in range(8):
            assert (await plane.generate(text="Hi", stopping=pb.StoppingParams(max_tokens=20))).usage.completion_tokens == 20
        deltas = [event.delta for event in await rest_of(stream) if event.HasField("delta")]
        indices = [delta.first_index + place for delta in deltas for place in range(len(delta.token_ids))]
        assert (indices, plane.engine.held) == ([*range(len(LONG))], set())
        assert max(len(delta.token_ids) for delta in deltas) > 1


async def test_can_07_a_reader_that_reads_nothing_for_too_long_loses_its_request() -> None:
    async with long_plane(IMPATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        stream = stream_of(channel)
        await until(lambda: plane.engine.ended == {"slow": Failure.READER_TOO_SLOW})
        await until(lambda: not len(plane.live))
        with pytest.raises(grpc.aio.AioRpcError, match="read nothing for 0\\.2 s") as caught:
            await rest_of(stream)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert plane.calls._calls[("GenerateStream", "resource_exhausted")] == 1


async def test_can_05_a_held_request_ends_at_its_deadline() -> None:
    async with long_plane(PATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        stream = stream_of(channel, seconds=2.0)
        await until_held(plane)
        await until(lambda: plane.engine.ended == {"slow": Failure.DEADLINE_EXCEEDED} and not len(plane.live))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(stream)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: plane.calls._calls[("GenerateStream", "deadline_exceeded")] == 1)


async def test_a_started_event_that_is_not_read_counts_as_well() -> None:
    async with long_plane(IMPATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[1] * 3000), output=pb.OutputOptions(prompt_token_ids=True), request_id="slow")
        stream = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(spec=spec))
        await until(lambda: plane.engine.ended)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(stream)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_can_09_a_client_that_drops_its_iterator_does_not_keep_its_request() -> None:
    async with long_plane(IMPATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        stream = stream_of(channel)
        await stream.read()
        del stream
        await until(lambda: plane.engine.ended and not len(plane.live))


async def test_in_a_drain_nobody_waits_for_a_reader_that_stopped() -> None:
    async with long_plane(PATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        before = stream_of(channel)
        await until_held(plane)
        plane.live.close()
        await until(lambda: plane.engine.ended == {"slow": Failure.UNAVAILABLE} and not len(plane.live))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(before)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_reader_that_stops_during_a_drain_is_not_waited_for() -> None:
    async with long_plane(PATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        plane.engine.gate.clear()
        stream = stream_of(channel)
        await stream.read()
        plane.live.close()
        plane.engine.gate.set()
        await until(lambda: plane.engine.ended == {"slow": Failure.UNAVAILABLE} and not len(plane.live))


async def test_a_unary_call_is_never_held() -> None:
    async with long_plane(StreamOptions(max_unwritten_tokens=1)) as plane:
        response = await plane.generate(text="Hi", stopping=pb.StoppingParams(max_tokens=len(LONG)), output=pb.OutputOptions(logprobs=True))
        assert (len(response.choices[0].token_ids), len(response.choices[0].logprobs)) == (len(LONG), len(LONG))
        assert plane.engine.ever_held == set()


async def test_a_resume_replaces_a_stream_whose_client_stopped_reading() -> None:
    async with long_plane(PATIENT) as plane, slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
        old = stream_of(channel)
        started = (await old.read()).started
        await until_held(plane)
        resume = pb.Resume(
            key=started.resume_key, effective=started.effective, prompt_token_ids=[256, *b"Hi"], model_fingerprint=started.model_fingerprint
        )
        events = await plane.events(request_id="slow", resume=resume)
        assert events[-1].finished.usage.completion_tokens == len(LONG)
        await until(lambda: not len(plane.live))  # the old call as well, though nobody reads it
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(old)
        assert caught.value.code() is grpc.StatusCode.CANCELLED


async def test_can_08_a_slow_reader_whose_channel_closes_is_forgotten() -> None:
    async with long_plane(PATIENT) as plane:
        async with slow_channel(f"127.0.0.1:{plane.server.port}") as channel:
            stream_of(channel)
            await until_held(plane)
        await until(lambda: plane.engine.ended == {"slow": Failure.CANCELLED} and not len(plane.live))
        assert plane.calls._calls[("GenerateStream", "cancelled")] == 1


_CLIENT = f"""
import sys, time, grpc
from pypto_serving.inference.v1 import inference_pb2 as pb, inference_pb2_grpc
with grpc.insecure_channel(sys.argv[1], options={SMALL_WINDOW!r}) as channel:
    spec = pb.GenerationSpec(text="Hi", request_id="slow", output=pb.OutputOptions(logprobs=True))
    call = inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(spec=spec))
    next(call)
    time.sleep(600)
"""


async def test_can_08_a_slow_reader_that_is_killed_is_forgotten() -> None:
    async with long_plane(PATIENT) as plane:
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", _CLIENT, f"127.0.0.1:{plane.server.port}")
        await until_held(plane)
        client.send_signal(signal.SIGKILL)
        await until(lambda: plane.engine.ended == {"slow": Failure.CANCELLED} and not len(plane.live))
        await client.wait()


async def test_can_08_a_slow_reader_whose_network_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"grpc.keepalive_time_ms": 200, "grpc.keepalive_timeout_ms": 200, "grpc.http2.ping_timeout_ms": 200}
    options = tuple({**dict(client_server.SERVER_OPTIONS), **quick}.items())
    assert set(quick) <= set(dict(client_server.SERVER_OPTIONS))
    monkeypatch.setattr(client_server, "SERVER_OPTIONS", options)
    async with long_plane(PATIENT) as plane:
        proxy = TcpProxy(f"127.0.0.1:{plane.server.port}")
        await proxy.start()
        async with slow_channel(proxy.address) as channel:
            stream_of(channel)
            await until_held(plane)
            proxy.hold()
            await until(lambda: plane.engine.ended == {"slow": Failure.CANCELLED} and not len(plane.live))
        await proxy.stop()
