"""Server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
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
        streaming = asyncio.ensure_future(self._stream(send, scope["direct_send"]))
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

    async def _stream(self, send: Send, send_part: Send) -> None:
        """Parts go past the framework's layers, which look at the start alone, and take a microsecond each."""
        reply = self._reply
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if text := reply.begin():
                await send_part(self._part(text))
            try:
                async for event in self._events:
                    if text := reply.event(event):
                        await send_part(self._part(text))
                text = reply.end()
            except ServingError as error:
                text = reply.fail(from_serving_error(error))
            await send_part(self._part(text, is_last=True))
        finally:
            await self._events.aclose()

    def _part(self, text: str, is_last: bool = False) -> Message:
        self._metrics.num_events += bool(text)
        return {"type": "http.response.body", "body": text.encode(), "more_body": not is_last}
