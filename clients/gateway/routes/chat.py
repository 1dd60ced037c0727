"""/v1/chat/completions."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.async_client import AsyncClient
from clients.errors import ServingError
from clients.gateway.event_stream import EventStream, failure_event
from clients.gateway.models import ModelProfile
from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.replies.chat import ChatStream, chat_completion
from clients.gateway.replies.parts import ReplyHead
from clients.gateway.replies.shapes import ChatCompletion
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.service import caller_of, gateway_of, started, unless_gone, whole
from clients.gateway.translation.chat import chat_request, offered_tools
from clients.gateway.translation.constraint import ConstraintWriter, chat_constraint, required_tools
from clients.request import Request
from clients.results import Event, Started

ROUTER = APIRouter()


@dataclass(frozen=True, slots=True)
class _Chat:
    """A conversation that is being answered."""

    body: ChatRequest
    profile: ModelProfile
    client: AsyncClient

    @property
    def tools(self) -> list[str]:
        return [tool.name for tool in offered_tools(self.body)]

    @property
    def is_parallel(self) -> bool:
        return self.body.parallel_tool_calls is not False

    def parser(self, prompt_ids: tuple[int, ...]) -> AnswerParser | None:
        return self.profile.parser(prompt_ids, self.tools, self.is_parallel)

    async def request(self, request_id: str) -> Request:
        """The request, held to what the body wants of its form."""
        shows_special_tokens = bool(self.tools) and self.profile.call_format.shows_special_tokens
        plain = chat_request(self.body, request_id, {}, shows_special_tokens)
        constraint, required = chat_constraint(self.body), required_tools(self.body)
        if not constraint and not required:
            return plain
        prompt = await self.client.tokenize_prompt(plain) if self.profile.reasons else None
        thoughts = self.profile.thoughts_after(prompt.token_ids if prompt else ())
        writer = ConstraintWriter(self.profile.call_format, self.profile.marker_ids, thoughts)
        if required:
            return replace(plain, **writer.calls(required, self.is_parallel))
        return replace(plain, **writer.text(constraint, offered_tools(self.body), self.is_parallel))


@ROUTER.post("/v1/chat/completions", responses=documented(ChatCompletion, streams=True), response_model=None)
async def create_chat_completion(body: ChatRequest, http: HttpRequest) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    served, client = await gateway.model(body.model, caller)
    chat = _Chat(body, await served.profile(client), client)
    request = await chat.request(caller.request_id)
    if body.stream:
        texts = await unless_gone(http, _begin(chat, request))
        return EventStream(texts, caller.headers, gateway.metrics)
    completion = await unless_gone(http, whole(client, request))
    head = _head(completion.started)
    prompt_ids = completion.started.prompt_token_ids
    return json_reply(chat_completion(head, completion, lambda: chat.parser(prompt_ids), chat.profile.call_format.make_id), caller)


def _head(first: Started) -> ReplyHead:
    return ReplyHead.of(f"chatcmpl-{first.request_id}", first)


async def _begin(chat: _Chat, request: Request) -> AsyncGenerator[str, None]:
    """The texts of a stream, as soon as the request has been accepted."""
    first, events = await started(chat.client, request)
    options = chat.body.stream_options
    stream = ChatStream(
        _head(first),
        chat.body.n or 1,
        lambda: chat.parser(first.prompt_token_ids),
        chat.profile.call_format.make_id,
        bool(options and options.include_usage),
    )
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
