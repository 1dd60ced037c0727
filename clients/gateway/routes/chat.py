"""/v1/chat/completions."""

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.gateway.event_stream import EventStream
from clients.gateway.replies.chat import ChatStream, chat_completion
from clients.gateway.replies.parts import ReplyHead
from clients.gateway.replies.shapes import ChatCompletion
from clients.gateway.routes.conversation import conversation
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.results import Started

ROUTER = APIRouter()


@ROUTER.post("/v1/chat/completions", responses=documented(ChatCompletion, streams=True), response_model=None)
async def create_chat_completion(body: ChatRequest, http: HttpRequest) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    chat = await conversation(body, http, caller)
    if body.stream:
        first, events = await unless_gone(http, chat.started())
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        reply = ChatStream(_head(first), body.n or 1, lambda: chat.parser(first.prompt_token_ids), chat.call_id, include_usage)
        return EventStream(reply, events, caller.headers, gateway.metrics)
    completion = await unless_gone(http, chat.whole())
    prompt_ids = completion.started.prompt_token_ids
    return json_reply(chat_completion(_head(completion.started), completion, lambda: chat.parser(prompt_ids), chat.call_id), caller)


def _head(first: Started) -> ReplyHead:
    return ReplyHead.of(f"chatcmpl-{first.request_id}", first)
