"""/v1/chat/completions."""

from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.errors import ServingError
from clients.gateway.event_stream import EventStream, failure_event
from clients.gateway.replies.chat import ChatStream, chat_completion
from clients.gateway.replies.parts import ReplyHead
from clients.gateway.replies.shapes import ChatCompletion
from clients.gateway.routes.conversation import Conversation, conversation
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.results import Event, Started

ROUTER = APIRouter()


@ROUTER.post("/v1/chat/completions", responses=documented(ChatCompletion, streams=True), response_model=None)
async def create_chat_completion(body: ChatRequest, http: HttpRequest) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    chat = await conversation(body, http, caller)
    if body.stream:
        return EventStream(await unless_gone(http, _begin(chat, body)), caller.headers, gateway.metrics)
    completion = await unless_gone(http, chat.whole())
    prompt_ids = completion.started.prompt_token_ids
    return json_reply(chat_completion(_head(completion.started), completion, lambda: chat.parser(prompt_ids), chat.call_id), caller)


def _head(first: Started) -> ReplyHead:
    return ReplyHead.of(f"chatcmpl-{first.request_id}", first)


async def _begin(chat: Conversation, body: ChatRequest) -> AsyncGenerator[str, None]:
    """The texts of a stream, as soon as the request has been accepted."""
    first, events = await chat.started()
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    stream = ChatStream(_head(first), body.n or 1, lambda: chat.parser(first.prompt_token_ids), chat.call_id, include_usage)
    return _texts(stream, events)


async def _texts(stream: ChatStream, events: AsyncGenerator[Event, None]) -> AsyncGenerator[str, None]:
    try:
        yield stream.begin()
        async for event in events:
            yield stream.event(event)
        yield stream.end()
    except ServingError as error:
        yield failure_event(error)
    finally:
        await events.aclose()
