"""Pings on connections where nothing happens for long, in fast motion: a hundredth of the time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fakes.network.raw_http2 import ping

from pypto_serving.worker.v1 import worker_pb2_grpc
from worker.service.channel_options import server_options
from worker.service.server import WorkerServer

_EXECUTE = "/pypto_serving.worker.v1.WorkerService/Execute"


class _SilentServicer(worker_pb2_grpc.WorkerServiceServicer):
    """A worker that has nothing to say."""

    async def Execute(self, requests: AsyncIterator[object], context: object) -> None:
        async for _ in requests:
            pass

    async def keep_time(self) -> None:
        pass

    def device_failed(self, message: str) -> None:
        pass

    def end_stream(self, message: str) -> None:
        pass


@asynccontextmanager
async def _server() -> AsyncIterator[str]:
    server = WorkerServer(_SilentServicer(), server_options(keepalive_ms=300, min_ping_interval_ms=50))  # type: ignore[arg-type]
    try:
        yield f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    finally:
        await server._server.stop(None)


@pytest.mark.parametrize("method", [_EXECUTE, ""], ids=["in session", "idle"])
async def test_rpc_01_nobody_is_sent_away_for_pings_during_a_long_silence(method: str) -> None:
    async with _server() as address:
        assert await ping(address, count=8, interval_seconds=0.1, method=method) == (8, False)


@pytest.mark.parametrize("method", [_EXECUTE, ""], ids=["in session", "idle"])
async def test_a_flood_of_pings_is_sent_away(method: str) -> None:
    async with _server() as address:
        num_answers, is_sent_away = await ping(address, count=50, interval_seconds=0.002, method=method)
        assert is_sent_away and num_answers < 50
