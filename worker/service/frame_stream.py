"""The frames on their way to a control plane, and how a stream ends."""

import asyncio
import math
from typing import NoReturn

import grpc
import grpc.aio

from pypto_serving.wire.contract import RETRY_AFTER_MS
from pypto_serving.worker.v1 import worker_pb2 as pb

_MAX_UNSENT_FRAMES = 256

StreamContext = grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse]


class StreamEnd(Exception):
    """How a stream ends; `retry_seconds`: the time after which the reason may be gone."""

    def __init__(self, code: grpc.StatusCode, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_seconds = retry_seconds

    async def abort(self, context: StreamContext) -> NoReturn:
        """End the call with this code and message, and with the advice when to try again."""
        advice = () if self.retry_seconds is None else ((RETRY_AFTER_MS, str(math.ceil(round(1000 * self.retry_seconds, 3)))),)
        await context.abort(self.code, self.message, advice)


class FrameStream:
    """The frames on their way to one control plane, and how that ends."""

    def __init__(self, number: int, epoch: int, control_plane_id: str) -> None:
        self.number = number
        self.epoch = epoch
        self.control_plane_id = control_plane_id
        self.said_farewell = False
        self._unsent: asyncio.Queue[pb.ExecuteResponse | StreamEnd] = asyncio.Queue()

    @property
    def is_flushed(self) -> bool:
        """Whether every frame was handed to gRPC."""
        return self._unsent.empty()

    def send(self, frame: pb.ExecuteResponse) -> None:
        """Queue a frame; ends the stream when the control plane lets too many pile up."""
        if self._unsent.qsize() == _MAX_UNSENT_FRAMES:
            self.end(StreamEnd(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MAX_UNSENT_FRAMES} frames wait to be read, which is the limit"))
        elif self._unsent.qsize() < _MAX_UNSENT_FRAMES:
            self._unsent.put_nowait(frame)

    def end(self, end: StreamEnd) -> None:
        """End the stream after the frames queued so far."""
        self._unsent.put_nowait(end)

    async def write_to(self, context: StreamContext) -> StreamEnd:
        """Write frames until the stream ends."""
        while not isinstance(frame := await self._unsent.get(), StreamEnd):
            await context.write(frame)
        return frame
