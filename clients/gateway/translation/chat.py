"""Chat completions."""

import json
from collections.abc import Sequence

from clients.conversation import Message as TurnOf
from clients.conversation import Tool, ToolCall
from clients.gateway.schemas.chat import ChatRequest, Message
from clients.gateway.schemas.tools import FunctionDefinition
from clients.gateway.translation.common import generation_fields, only_one
from clients.request import Request

#: What OpenAI calls the system's role in newer models; templates know the old name.
_ROLES = {"developer": "system"}


def chat_request(body: ChatRequest, request_id: str, shows_special_tokens: bool) -> Request:
    """The request of a body, not held to any form yet; `shows_special_tokens`: parsers of calls have to see them."""
    fields = generation_fields(body)
    if shows_special_tokens:
        fields["skip_special_tokens"] = False
    arguments = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        arguments.setdefault("reasoning_effort", body.reasoning_effort)
    return Request(
        messages=[turn(message) for message in body.messages],
        tools=template_tools(offered_tools(body)),
        template_arguments=arguments,
        documents=body.documents or (),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        literal_text=body.literal_text,
        max_tokens=only_one([("max_completion_tokens", body.max_completion_tokens), ("max_tokens", body.max_tokens)]),
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        request_id=request_id,
        model=body.model,
        **fields,
    )


def offered_tools(body: ChatRequest) -> list[FunctionDefinition]:
    """The tools that the model is told of; none where it may not call any."""
    return [] if body.tool_choice == "none" else [tool.function for tool in body.tools or ()]


def template_tools(tools: Sequence[FunctionDefinition]) -> list[Tool]:
    """Tools as chat templates get them."""
    return [Tool(tool.name, tool.description or "", _schema_text(tool)) for tool in tools]


def _schema_text(tool: FunctionDefinition) -> str:
    return "" if tool.parameters is None else json.dumps(tool.parameters, ensure_ascii=False)


def turn(message: Message) -> TurnOf:
    """A turn of a conversation, as control planes take it."""
    calls = [ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    role = _ROLES.get(message.role, message.role)
    return TurnOf(role, message.text, calls, message.tool_call_id or "", message.name or "", message.reasoning_content)
