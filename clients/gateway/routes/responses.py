"""/v1/responses."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.gateway.event_stream import EventStream
from clients.gateway.replies.parts import ReplyHead
from clients.gateway.replies.responses import ResponseStream
from clients.gateway.replies.shapes import ResponseShape
from clients.gateway.routes.conversation import Conversation, conversation
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.responses import ResponsesRequest
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.gateway.translation.responses import chat_body
from clients.results import Delta, Finished, Started

ROUTER = APIRouter()


@ROUTER.post("/v1/responses", responses=documented(ResponseShape, streams=True), response_model=None)
async def create_response(body: ResponsesRequest, http: HttpRequest) -> Response:
    """Answer a conversation, at once or as a stream of events. Nothing is stored."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    chat = await conversation(chat_body(body), http, caller)
    if body.stream:
        first, events = await unless_gone(http, chat.started())
        return EventStream(_reply(chat, body, first), events, caller.headers, gateway.metrics)
    completion = await unless_gone(http, chat.whole())
    reply, choice = _reply(chat, body, completion.started), completion.choices[0]
    reply.event(Delta(0, choice.text, choice.token_ids, 0, choice.logprobs))
    reply.event(Finished(0, choice.finish_reason, choice.matched, choice.usage, choice.timing))
    return json_reply(reply.response, caller)


def _reply(chat: Conversation, body: ResponsesRequest, first: Started) -> ResponseStream:
    head = ReplyHead.of(f"resp_{first.request_id}", first)
    return ResponseStream(head, _asked(body), chat.parser(first.prompt_token_ids), chat.call_id)


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
