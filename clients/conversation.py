"""Chat prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clients.errors import invalid
from pypto_serving.inference.v1 import inference_pb2 as pb

TemplateValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant turn made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `content` is None only beside tool calls."""

    role: str
    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function offered to the model; `parameters_schema` is JSON schema text."""

    name: str
    description: str = ""
    parameters_schema: str = ""


#: A message, or a mapping with its fields.
MessageLike = Message | Mapping[str, Any]


def chat_prompt(
    messages: Sequence[MessageLike],
    tools: Sequence[Tool] = (),
    template_arguments: Mapping[str, TemplateValue] | None = None,
    add_generation_prompt: bool | None = None,
) -> pb.Chat:
    """The conversation on the wire; raises ServingError naming a message that has no such form."""
    chat = pb.Chat(add_generation_prompt=add_generation_prompt)
    chat.messages.extend(_wire_message(index, message) for index, message in enumerate(messages))
    chat.tools.extend(_wire_tool(index, tool) for index, tool in enumerate(tools))
    for name, value in (template_arguments or {}).items():
        _set_template_argument(chat, name, value)
    return chat


def _wire_message(index: int, like: MessageLike) -> pb.ChatMessage:
    try:
        message = like if isinstance(like, Message) else Message(**like)
        calls = [pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls]
        return pb.ChatMessage(
            role=message.role, content=message.content, tool_calls=calls, tool_call_id=message.tool_call_id, name=message.name
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(f"messages[{index}]: {error}") from error


def _wire_tool(index: int, tool: Tool) -> pb.Tool:
    try:
        return pb.Tool(name=tool.name, description=tool.description, parameters_schema=tool.parameters_schema)
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(f"tools[{index}]: {error}") from error


def _set_template_argument(chat: pb.Chat, name: str, value: TemplateValue) -> None:
    try:
        chat.template_arguments[name].CopyFrom(_template_value(value))
    except (TypeError, ValueError) as error:
        raise invalid(f"template_arguments[{name!r}]: {error}") from error


def _template_value(value: TemplateValue) -> pb.TemplateValue:
    match value:
        case bool():
            return pb.TemplateValue(bool_value=value)
        case int():
            return pb.TemplateValue(int_value=value)
        case float():
            return pb.TemplateValue(double_value=value)
        case str():
            return pb.TemplateValue(string_value=value)
    raise TypeError(f"{value!r} is none of bool, int, float, str")
