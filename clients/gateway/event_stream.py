"""Server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clients.errors import ServingError
from clients.gateway.errors import ApiError, from_serving_error
from clients.gateway.metrics import GatewayMetrics
from clients.gateway.service import disconnected


class EventStream(Response):
    """Streams texts that are whole events. A client that goes away cancels what makes them."""

    media_type = "text/event-stream"

    def __init__(self, texts: AsyncGenerator[str, None], headers: Mapping[str, str], metrics: GatewayMetrics) -> None:
        self.status_code = 200
        self.background = None
        self._texts = texts
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
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for text in self._texts:
                if text:
                    self._metrics.num_events += 1
                    await send_part({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send_part({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._texts.aclose()


def failure_event(error: ServingError | ApiError) -> str:
    """The last event of a stream that fails: an error, and no [DONE]."""
    told = error if isinstance(error, ApiError) else from_serving_error(error)
    return f"data: {json.dumps(told.body)}\n\n"
