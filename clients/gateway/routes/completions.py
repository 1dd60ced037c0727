"""/v1/completions."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.async_client import AsyncClient
from clients.errors import ServingError
from clients.gateway.event_stream import EventStream
from clients.gateway.replies.completions import CompletionOptions, CompletionStream, text_completion
from clients.gateway.replies.parts import ReplyHead
from clients.gateway.replies.shapes import TextCompletion
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.completions import CompletionRequest
from clients.gateway.service import Caller, caller_of, gateway_of, started, unless_gone, whole
from clients.gateway.translation.completions import completion_requests
from clients.results import Event, Started

ROUTER = APIRouter()
R = TypeVar("R")

#: Events of several prompts that wait for a slow reader.
_MAX_WAITING = 64


@ROUTER.post("/v1/completions", responses=documented(TextCompletion, streams=True), response_model=None)
async def create_completion(body: CompletionRequest, http: HttpRequest) -> Response:
    """Continue one or several prompts, at once or as a stream of events."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    _, client = await gateway.model(body.model, caller)
    requests = [replace(request, traceparent=caller.traceparent) for request in completion_requests(body, caller.request_id)]
    options = await _options(body, client)
    if body.stream:
        accepted = await unless_gone(http, _together([started(client, request, caller) for request in requests]))
        reply = CompletionStream(_head(accepted[0][0], caller), len(requests), options)
        streams = [events for _, events in accepted]
        return EventStream(reply, _merged(streams) if len(streams) > 1 else streams[0], caller.headers, gateway.metrics)
    completions = await unless_gone(http, _together([whole(client, request, caller) for request in requests]))
    return json_reply(text_completion(_head(completions[0].started, caller), completions, options), caller)


async def _options(body: CompletionRequest, client: AsyncClient) -> CompletionOptions:
    echoes: list[str] = []
    if body.echo:
        echoes = [prompt if isinstance(prompt, str) else await client.detokenize(prompt) for prompt in body.prompts]
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    return CompletionOptions(body.n or 1, body.logprobs, echoes, include_usage)


def _head(first: Started, caller: Caller) -> ReplyHead:
    return ReplyHead.of(f"cmpl-{caller.request_id}", first)


async def _together(works: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """All results, or the first failure, which ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _merged(prompts: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[tuple[int, Event], None]:
    """Events of all prompts as they come, each with the index of its prompt."""
    queue: asyncio.Queue[tuple[int, Event] | ServingError | None] = asyncio.Queue(_MAX_WAITING)
    pumps = [asyncio.ensure_future(_pump(index, events, queue)) for index, events in enumerate(prompts)]
    try:
        for _ in prompts:
            while (told := await queue.get()) is not None:
                if isinstance(told, ServingError):
                    raise told
                yield told
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(prompt: int, events: AsyncGenerator[Event, None], queue: asyncio.Queue[tuple[int, Event] | ServingError | None]) -> None:
    """Queue the events of a prompt, and then its end or its failure."""
    try:
        async with aclosing(events):
            async for event in events:
                await queue.put((prompt, event))
        await queue.put(None)
    except ServingError as error:
        await queue.put(error)
