"""Responses: the same conversation as a body of chat completions."""

from collections.abc import Sequence

from clients.gateway.errors import ApiError
from clients.gateway.schemas.chat import ChatRequest, FunctionCall, Message, ToolCall
from clients.gateway.schemas.common import Sampling
from clients.gateway.schemas.responses import (
    FlatJsonSchemaFormat,
    FlatToolChoice,
    FunctionCallItem,
    FunctionCallOutput,
    InputText,
    PlainFormat,
    ReasoningItem,
    ResponsesRequest,
)
from clients.gateway.schemas.tools import (
    FunctionDefinition,
    FunctionName,
    FunctionTool,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    ToolChoice,
)


def chat_body(body: ResponsesRequest) -> ChatRequest:
    """The body of a chat completion that asks for the same; raises ApiError when nobody says anything."""
    messages = _messages(body)
    if not messages:
        raise ApiError(400, "input: there is no message, call or output in it", param="input")
    return ChatRequest(
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        tools=[_tool(tool.name, tool.description, tool.parameters) for tool in body.tools or ()] or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_response_format(body),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        chat_template_kwargs=body.chat_template_kwargs,
        **{name: getattr(body, name) for name in Sampling.model_fields},
    )


def _messages(body: ResponsesRequest) -> list[Message]:
    messages = [Message(role="system", content=body.instructions)] if body.instructions is not None else []
    if isinstance(body.input, str):
        return [*messages, Message(role="user", content=body.input)]
    thoughts: str | None = None
    for item in body.input:
        match item:
            case ReasoningItem():
                thoughts = "".join(part.text for part in item.content or ()) or None
            case FunctionCallItem():
                _add_call(messages, item, thoughts)
                thoughts = None
            case FunctionCallOutput():
                messages.append(Message(role="tool", content=_text(item.output), tool_call_id=item.call_id))
            case _:
                messages.append(Message(role=item.role, content=_text(item.content), reasoning_content=thoughts))
                thoughts = None
    return messages


def _add_call(messages: list[Message], item: FunctionCallItem, thoughts: str | None) -> None:
    """Calls that follow each other, and the text before them, are one turn."""
    call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments))
    if messages and messages[-1].role == "assistant" and thoughts is None:
        messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
    else:
        messages.append(Message(role="assistant", tool_calls=[call], reasoning_content=thoughts))


def _text(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _tool(name: str, description: str | None, parameters: dict[str, object] | None) -> FunctionTool:
    return FunctionTool(function=FunctionDefinition(name=name, description=description, parameters=parameters, strict=None))


def _tool_choice(body: ResponsesRequest) -> ToolChoice | None:
    choice = body.tool_choice
    return NamedToolChoice(function=FunctionName(name=choice.name)) if isinstance(choice, FlatToolChoice) else choice


def _response_format(body: ResponsesRequest) -> ResponseFormat | None:
    match body.text.format if body.text else None:
        case PlainFormat(type="json_object"):
            return JsonObjectFormat(type="json_object")
        case FlatJsonSchemaFormat() as asked:
            return JsonSchemaFormat(type="json_schema", json_schema=JsonSchema(name=asked.name, schema=asked.schema_))
    return None
