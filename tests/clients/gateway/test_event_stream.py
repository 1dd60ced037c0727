"""A streamed reply as messages of the server's."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from clients.gateway.event_stream import EventStream
from clients.gateway.metrics import GatewayMetrics
from clients.gateway.replies.parts import StreamedReply


class Echo(StreamedReply[str]):
    """Writes events as they come."""

    def event(self, event: str) -> str:
        return event


async def events() -> AsyncGenerator[str, None]:
    for event in ("a", "", "b"):
        yield event


async def never() -> Message:
    return await asyncio.get_running_loop().create_future()


async def test_an_empty_text_is_no_event_but_the_end_is_sent() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    metrics = GatewayMetrics()
    await EventStream(Echo(), events(), {}, metrics)({"direct_send": send}, never, send)
    parts = [(message["body"], message["more_body"]) for message in sent[1:]]
    assert (parts, metrics.num_events) == ([(b"a", True), (b"b", True), (b"", False)], 2)
