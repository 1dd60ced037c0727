"""A gateway in the event loop of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clients.gateway.config import read_config
from clients.gateway.server import GatewayServer
from pypto_serving.process.stop_requests import StopRequests


class RunningGateway:
    """A gateway, and where it is."""

    def __init__(self, server: GatewayServer, stop: StopRequests) -> None:
        self.server, self.stop = server, stop
        self.task = asyncio.ensure_future(server.run())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


@asynccontextmanager
async def running_gateway(*targets: str, flags: tuple[str, ...] = ()) -> AsyncIterator[RunningGateway]:
    """Serve in front of control planes at `targets`."""
    stop = StopRequests()
    asked = [flag for target in targets for flag in ("--target", target)]
    gateway = RunningGateway(GatewayServer(read_config(["--port", "0", *asked, *flags]), stop), stop)
    await gateway.server.started.wait()
    try:
        yield gateway
    finally:
        stop.request_stop()
        stop.request_stop()
        await gateway.task
