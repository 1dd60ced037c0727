"""What the end of a stream is taken for."""

from pathlib import Path

import grpc.aio
import pytest

from control_plane.edge.scheduler_link.options import SchedulerLinkOptions
from control_plane.edge.scheduler_link.stream import LossCause, SessionLost, open_stream
from pypto_serving.scheduler.v1 import scheduler_pb2_grpc

_CODE = grpc.StatusCode


class _Refusing(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Ends each stream in one way."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.end = code, details

    async def Connect(self, requests, context):
        await context.abort(*self.end)


@pytest.mark.parametrize(
    ("code", "details", "reason", "cause"),
    [
        (_CODE.INTERNAL, "output cannot be written", "INTERNAL: output cannot be written", LossCause.CONTENT),
        (_CODE.INTERNAL, "Internal error from Core", "the stream has ended, while this process wrote or stood still", LossCause.BROKEN),
        (_CODE.UNAVAILABLE, "Socket closed", "UNAVAILABLE: Socket closed", LossCause.BROKEN),
    ],
)
async def test_only_a_scheduler_that_speaks_of_content_means_it(socket_directory: Path, code, details, reason, cause):
    server, address = grpc.aio.server(), f"unix:{socket_directory}/s"
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(_Refusing(code, details), server)
    server.add_insecure_port(address)
    await server.start()
    with pytest.raises(SessionLost) as caught:
        await open_stream(address, SchedulerLinkOptions([address], "front end", "model"))
    assert (str(caught.value), caught.value.cause, caught.value.may_be_back) == (reason, cause, True)
    await server.stop(None)
