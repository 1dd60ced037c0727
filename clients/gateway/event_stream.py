"""Server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from clients.errors import ServingError
from clients.gateway.errors import from_serving_error
from clients.gateway.metrics import GatewayMetrics
from clients.gateway.replies.parts import StreamedReply
from clients.gateway.service import disconnected

E = TypeVar("E")


class EventStream(Response, Generic[E]):
    """Streams a reply, which `events` make; they are closed at its end, or when the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self, reply: StreamedReply[E], events: AsyncGenerator[E, None], headers: Mapping[str, str], metrics: GatewayMetrics
    ) -> None:
        self.status_code = 200
        self.background = None
        self._reply = reply
        self._events = events
        self._metrics = metrics
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        streaming = asyncio.ensure_future(self._stream(send, scope["state"]["write_part"]))
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            streaming.cancel()
            leaving.cancel()
            await asyncio.gather(streaming, leaving, return_exceptions=True)
        if streaming.cancelled():
            self._metrics.num_disconnects += 1
        else:
            streaming.result()

    async def _stream(self, send: Send, write_part: Callable[[bytes], bool]) -> None:
        reply, metrics = self._reply, self._metrics
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if text := reply.begin():
                metrics.num_events += 1
                await send(_body(text.encode(), is_last=False))
            try:
                async for event in self._events:
                    if text := reply.event(event):
                        metrics.num_events += 1
                        if not write_part(part := text.encode()):
                            await send(_body(part, is_last=False))
                text = reply.end()
            except ServingError as error:
                text = reply.fail(from_serving_error(error))
            metrics.num_events += bool(text)
            await send(_body(text.encode(), is_last=True))
        finally:
            await self._events.aclose()


def _body(part: bytes, is_last: bool) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": not is_last}
