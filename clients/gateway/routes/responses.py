"""/v1/responses."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.errors import ServingError
from clients.gateway.errors import from_serving_error
from clients.gateway.event_stream import EventStream
from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.parsers.pieces import Content
from clients.gateway.replies.parts import ReplyHead
from clients.gateway.replies.responses import ResponseStream
from clients.gateway.replies.shapes import ResponseShape
from clients.gateway.routes.conversation import Conversation, conversation
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.responses import ResponsesRequest
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.gateway.translation.responses import chat_body
from clients.results import Delta, Event, Finished, Started

ROUTER = APIRouter()


@ROUTER.post("/v1/responses", responses=documented(ResponseShape, streams=True), response_model=None)
async def create_response(body: ResponsesRequest, http: HttpRequest) -> Response:
    """Answer a conversation, at once or as a stream of events. Nothing is stored."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    chat = await conversation(chat_body(body), http, caller)
    if body.stream:
        return EventStream(await unless_gone(http, _begin(chat, body)), caller.headers, gateway.metrics)
    completion = await unless_gone(http, chat.whole())
    stream, parser = _stream(chat, body, completion.started)
    choice = completion.choices[0]
    pieces = parser.feed(choice.text) + parser.end() if parser else [Content(choice.text)]
    stream.pieces(pieces)
    stream.end(Finished(0, choice.finish_reason, choice.matched, choice.usage, choice.timing))
    return json_reply(stream.response, caller)


def _stream(chat: Conversation, body: ResponsesRequest, first: Started) -> tuple[ResponseStream, AnswerParser | None]:
    head = ReplyHead.of(f"resp_{first.request_id}", first)
    return ResponseStream(head, _asked(body), chat.call_id), chat.parser(first.prompt_token_ids)


def _asked(body: ResponsesRequest) -> dict[str, Any]:
    """Fields of a response that say what was asked for."""
    names = ("instructions", "temperature", "top_p", "max_output_tokens", "metadata")
    return {
        **{name: getattr(body, name) for name in names},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else _dumped(body.tool_choice) or "auto",
        "tools": [_dumped(tool) for tool in body.tools or ()],
        "text": _dumped(body.text) or {"format": {"type": "text"}},
        "reasoning": _dumped(body.reasoning),
        "previous_response_id": None,
        "truncation": "disabled",
        "store": False,
    }


def _dumped(value: Any) -> Any:
    return value.model_dump(by_alias=True, exclude_unset=True) if value is not None else None


async def _begin(chat: Conversation, body: ResponsesRequest) -> AsyncGenerator[str, None]:
    """The texts of a stream, as soon as the request has been accepted."""
    first, events = await chat.started()
    return _texts(*_stream(chat, body, first), events)


async def _texts(stream: ResponseStream, parser: AnswerParser | None, events: AsyncGenerator[Event, None]) -> AsyncGenerator[str, None]:
    try:
        yield stream.begin()
        async for event in events:
            if isinstance(event, Delta) and event.text:
                yield stream.pieces(parser.feed(event.text) if parser else [Content(event.text)])
            elif isinstance(event, Finished):
                yield stream.pieces(parser.end() if parser else []) + stream.end(event)
    except ServingError as error:
        yield stream.fail(from_serving_error(error))
    finally:
        await events.aclose()
