"""Chat prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import struct_pb2

from clients.errors import invalid
from pypto_serving.inference.v1 import inference_pb2 as pb

#: A value of JSON: None, bool, int, float, str, a list or a mapping of them.
TemplateValue = None | bool | int | float | str | Sequence["TemplateValue"] | Mapping[str, "TemplateValue"]


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
    reasoning_content: str | None = None


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
    documents: Sequence[Mapping[str, TemplateValue]] = (),
) -> pb.Chat:
    """The conversation on the wire; raises ServingError naming what has no such form."""
    chat = pb.Chat()
    chat.messages.extend(_wire_message(index, message) for index, message in enumerate(messages))
    chat.tools.extend(_wire_tool(index, tool) for index, tool in enumerate(tools))
    for name, value in (template_arguments or {}).items():
        _set_template_argument(chat, name, value)
    chat.documents.extend(_wire_document(index, document) for index, document in enumerate(documents))
    return chat


def _wire_message(index: int, like: MessageLike) -> pb.ChatMessage:
    try:
        message = like if isinstance(like, Message) else Message(**like)
        calls = [pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in message.tool_calls]
        return pb.ChatMessage(
            role=message.role,
            content=message.content,
            tool_calls=calls,
            tool_call_id=message.tool_call_id,
            name=message.name,
            reasoning_content=message.reasoning_content,
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(f"messages[{index}]: {error}") from error


def _wire_tool(index: int, tool: Tool) -> pb.Tool:
    try:
        return pb.Tool(name=tool.name, description=tool.description, parameters_schema=tool.parameters_schema)
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(f"tools[{index}]: {error}") from error


def _wire_document(index: int, document: Mapping[str, TemplateValue]) -> pb.TemplateObject:
    try:
        return _template_object(document)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise invalid(f"documents[{index}]: {error}") from error


def _set_template_argument(chat: pb.Chat, name: str, value: TemplateValue) -> None:
    try:
        chat.template_arguments[name].CopyFrom(_template_value(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"template_arguments[{name!r}]: {error}") from error


def _template_value(value: TemplateValue) -> pb.TemplateValue:
    wire = pb.TemplateValue()
    match value:
        case bool():
            wire.bool_value = value
        case int():
            wire.int_value = value
        case float():
            wire.double_value = value
        case str():
            wire.string_value = value
        case None:
            wire.null_value = struct_pb2.NULL_VALUE
        case Mapping():
            wire.object_value.CopyFrom(_template_object(value))
        case Sequence() if not isinstance(value, bytes | bytearray):
            wire.list_value.CopyFrom(pb.TemplateList(values=map(_template_value, value)))
        case _:
            raise TypeError(f"{value!r} is none of None, bool, int, float, str, list and dict")
    return wire


def _template_object(value: Mapping[str, TemplateValue]) -> pb.TemplateObject:
    return pb.TemplateObject(fields={name: _template_value(member) for name, member in value.items()})
