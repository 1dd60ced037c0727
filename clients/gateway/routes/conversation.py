"""What routes of conversations share: from a body to a request of the model's control plane, and to parsers of what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request as HttpRequest

from clients.async_client import AsyncClient
from clients.gateway.models import ModelProfile
from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.service import Caller, gateway_of, unless_gone
from clients.gateway.translation.chat import chat_request, offered_tools
from clients.gateway.translation.constraint import ConstraintWriter, Thoughts, chat_constraint, required_tools
from clients.request import Request


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that is being answered."""

    client: AsyncClient
    request: Request
    profile: ModelProfile
    tools: Sequence[str]
    is_parallel: bool

    def parser(self, prompt_ids: Sequence[int]) -> AnswerParser | None:
        """The parser of a choice; None where all of its text is content."""
        return self.profile.parser(prompt_ids, self.tools, self.is_parallel)

    def call_id(self) -> str:
        """An id for a call."""
        return self.profile.call_format.make_id()


async def conversation(body: ChatRequest, http: HttpRequest, caller: Caller) -> Conversation:
    """What has to be asked for; raises ServingError or ApiError."""
    served, client = await gateway_of(http).model(body.model, caller)
    profile = await unless_gone(http, served.profile(client))
    tools = [tool.name for tool in offered_tools(body)]
    plain = chat_request(body, caller.request_id, bool(tools) and profile.call_format.shows_special_tokens)
    plain = replace(plain, traceparent=caller.traceparent)
    request = await unless_gone(http, _constrained(body, plain, profile, client))
    return Conversation(client, request, profile, tools, body.parallel_tool_calls is not False)


async def _constrained(body: ChatRequest, plain: Request, profile: ModelProfile, client: AsyncClient) -> Request:
    """The request, held to what the body wants of the answer's form."""
    constraint, required = chat_constraint(body), required_tools(body)
    if not constraint and not required:
        return plain
    writer = ConstraintWriter(profile.call_format, profile.marker_ids, await _thoughts(plain, profile, client))
    is_parallel = body.parallel_tool_calls is not False
    fields = writer.calls(required, is_parallel) if required else writer.text(constraint, offered_tools(body), is_parallel)
    return replace(plain, **fields)


async def _thoughts(plain: Request, profile: ModelProfile, client: AsyncClient) -> Thoughts:
    return profile.thoughts_after((await client.tokenize_prompt(plain)).token_ids) if profile.reasons else Thoughts.NONE
