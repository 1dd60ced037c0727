"""What routes of conversations share: from a body to a request of the model's control plane, and to parsers of what it answers."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from starlette.requests import Request as HttpRequest

from clients.async_client import AsyncClient
from clients.errors import ServingError
from clients.gateway.errors import ApiError
from clients.gateway.models import ModelProfile
from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.service import Caller, gateway_of, started, unless_gone, whole
from clients.gateway.translation.chat import chat_request, offered_tools
from clients.gateway.translation.common import structured_fields
from clients.gateway.translation.constraint import ConstraintWriter, Thoughts, allows_several_calls, chat_constraint, required_tools
from clients.request import Request
from clients.results import Completion, Event, Started

_OF_GRAMMAR = "constraint.grammar: "


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation that is being answered."""

    client: AsyncClient
    caller: Caller
    request: Request
    profile: ModelProfile
    tools: Sequence[str]
    is_parallel: bool
    grammar_of: str = ""  # the field of the body that the request's grammar was written for; empty: it is the body's own, or none

    async def whole(self) -> Completion:
        """The whole answer; raises ServingError and ApiError."""
        with self._blaming():
            return await whole(self.client, self.request, self.caller)

    async def started(self) -> tuple[Started, AsyncGenerator[Event, None]]:
        """What `service.started` returns; raises ServingError and ApiError."""
        with self._blaming():
            return await started(self.client, self.request, self.caller)

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """Name the field of the body where the control plane names a grammar that nobody has sent."""
        try:
            yield
        except ServingError as error:
            if self.grammar_of and error.message.startswith(_OF_GRAMMAR):
                why = error.message.removeprefix(_OF_GRAMMAR)
                raise ApiError(400, f"{self.grammar_of}: {why}", param=self.grammar_of, code="invalid_value") from None
            raise

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
    return Conversation(client, caller, request, profile, tools, allows_several_calls(body), _grammar_of(body, request))


def _grammar_of(body: ChatRequest, request: Request) -> str:
    if request.grammar is None or request.grammar == structured_fields(body).get("grammar"):
        return ""
    return "tools" if required_tools(body) else "response_format" if body.response_format else "structured_outputs"


async def _constrained(body: ChatRequest, plain: Request, profile: ModelProfile, client: AsyncClient) -> Request:
    """The request, held to what the body wants of the answer's form."""
    constraint, required = chat_constraint(body), required_tools(body)
    if not constraint and not required:
        return plain
    writer = ConstraintWriter(profile.call_format, profile.marker_ids, await _thoughts(plain, profile, client))
    is_parallel = allows_several_calls(body)
    fields = writer.calls(required, is_parallel) if required else writer.text(constraint, offered_tools(body), is_parallel)
    return replace(plain, **fields)


async def _thoughts(plain: Request, profile: ModelProfile, client: AsyncClient) -> Thoughts:
    return profile.thoughts_after((await client.tokenize_prompt(plain)).token_ids) if profile.reasons else Thoughts.NONE
