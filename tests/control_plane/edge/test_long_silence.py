"""Clients that ping through a long silence, in fast motion: a hundredth of the time."""

from pathlib import Path

import pytest
from fakes.network.raw_http2 import ping
from harness.running_control_plane import running

_CALLS = {
    "address": "/pypto_serving.inference.v1.InferenceService/GenerateStream",
    "admin": "/pypto_serving.admin.v1.AdminService/GetState",
}


@pytest.mark.parametrize("state", ["in a call", "idle"])
@pytest.mark.parametrize("port", _CALLS)
async def test_rpc_01_a_client_may_ping_through_a_long_silence(model: Path, port: str, state: str) -> None:
    async with running(model) as server:
        address = f"127.0.0.1:{server.plane.ports[port]}"
        assert await ping(address, count=8, interval_seconds=0.1, method=_CALLS[port] if state == "in a call" else "") == (8, False)
