"""A conversation as chat templates know it: the shapes that transformers passes to them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from control_plane.edge.service.admission.prompt_limit import PromptLimit
from control_plane.edge.service.errors import InvalidArgument
from control_plane.edge.text.chat_template import RESERVED_ARGUMENTS, Conversation
from pypto_serving.inference.v1 import inference_pb2

_MAX_TOOLS = 128
_MAX_CALLS = 128  # of a message
_MAX_ARGUMENTS = 64
_MAX_ARGUMENT_NAME = 64

#: A template may indent JSON, which makes its text longer by the depth; both together bound what a rendering can take.
_MAX_JSON_CHARACTERS = 1 << 19
_MAX_JSON_DEPTH = 32

#: Of a tool that takes no arguments.
_NO_PARAMETERS = {"type": "object", "properties": {}}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def check_chat(chat: inference_pb2.Chat, path: str, limit: PromptLimit) -> None:
    """Check sizes, before anything is copied; raises InvalidArgument."""
    if not chat.messages:
        raise InvalidArgument(f"{path}.messages is empty, must have at least one message")
    limit.check_messages(f"{path}.messages", len(chat.messages))
    _check_count(f"{path}.tools", len(chat.tools), _MAX_TOOLS)
    _check_count(f"{path}.template_arguments", len(chat.template_arguments), _MAX_ARGUMENTS)
    for index, message in enumerate(chat.messages):
        _check_count(f"{path}.messages[{index}].tool_calls", len(message.tool_calls), _MAX_CALLS)
    num_characters = sum(len(text) for message in chat.messages for text in _texts(message))
    limit.check_characters(f"{path}.messages", num_characters)
    values = sum(len(name) + len(value.string_value) for name, value in chat.template_arguments.items())
    limit.check_characters(f"{path}.template_arguments", values)
    tools = sum(len(tool.name) + len(tool.description) + len(tool.parameters_schema) for tool in chat.tools)
    calls = sum(len(call.arguments) for message in chat.messages for call in message.tool_calls)
    if tools + calls > _MAX_JSON_CHARACTERS:
        raise InvalidArgument(
            f"{path}.tools and arguments of tool calls have {tools + calls} characters, may have at most {_MAX_JSON_CHARACTERS}"
        )


def conversation_of(chat: inference_pb2.Chat, path: str) -> Conversation:
    """A checked chat as a template takes it; raises InvalidArgument."""
    return Conversation(
        messages=[_message(message, f"{path}.messages[{index}]") for index, message in enumerate(chat.messages)],
        tools=[_tool(tool, f"{path}.tools[{index}]") for index, tool in enumerate(chat.tools)],
        arguments=_arguments(chat.template_arguments, f"{path}.template_arguments"),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
    )


def _check_count(field: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArgument(f"{field} has {size} entries, may have at most {limit}")


def _texts(message: inference_pb2.ChatMessage) -> Sequence[str]:
    calls = [text for call in message.tool_calls for text in (call.id, call.name, call.arguments)]
    return (message.role, message.content, message.name, message.tool_call_id, *calls)


def _message(message: inference_pb2.ChatMessage, path: str) -> dict[str, Any]:
    if not message.role:
        raise InvalidArgument(f"{path}.role is empty, must say who speaks")
    if not message.HasField("content") and not message.tool_calls:
        raise InvalidArgument(f"{path}.content is absent, must be given unless there are tool calls (it may be empty)")
    fields: dict[str, Any] = {"role": message.role}
    if message.HasField("content"):
        fields["content"] = message.content
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.name:
        fields["name"] = message.name
    return fields


def _tool_call(call: inference_pb2.ToolCall, path: str) -> dict[str, Any]:
    """Arguments that are a JSON object are passed as one, as templates write objects in a form of their own; other text stays text."""
    if not call.name:
        raise InvalidArgument(f"{path}.name is empty, must name the function")
    try:
        parsed = _parsed(call.arguments, f"{path}.arguments")
    except ValueError:
        parsed = None
    arguments = parsed if isinstance(parsed, dict) else call.arguments
    identified = {"id": call.id} if call.id else {}
    return {**identified, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tool(tool: inference_pb2.Tool, path: str) -> dict[str, Any]:
    if not tool.name:
        raise InvalidArgument(f"{path}.name is empty, must name the function")
    described = {"description": tool.description} if tool.description else {}
    schema = _schema(tool.parameters_schema, f"{path}.parameters_schema") if tool.parameters_schema else _NO_PARAMETERS
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": schema}}


def _schema(text: str, path: str) -> dict[str, Any]:
    try:
        schema = _parsed(text, path)
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidArgument(f"{path} is not a JSON object")
    return schema


def _arguments(arguments: Mapping[str, inference_pb2.TemplateValue], path: str) -> dict[str, Any]:
    values = {}
    for name, value in arguments.items():
        if len(name) > _MAX_ARGUMENT_NAME or not _NAME.fullmatch(name):
            raise InvalidArgument(f"{path}: {name[:_MAX_ARGUMENT_NAME]!r} is no name of at most {_MAX_ARGUMENT_NAME} letters and digits")
        if name in RESERVED_ARGUMENTS or name.endswith("_token"):
            raise InvalidArgument(f"{path}: {name!r} is set by the server, must be absent")
        kind = value.WhichOneof("kind")
        if kind is None:
            raise InvalidArgument(f"{path}[{name!r}] has no value")
        values[name] = getattr(value, kind)
    return values


def _parsed(text: str, path: str) -> Any:
    """The value of a JSON text; raises InvalidArgument when it is nested too deep, ValueError when it is no JSON."""
    try:
        value = json.loads(text)
        is_shallow = _is_shallower(value, _MAX_JSON_DEPTH)
    except RecursionError:
        is_shallow = False
    if not is_shallow:
        raise InvalidArgument(f"{path} is nested more than {_MAX_JSON_DEPTH} levels deep")
    return value


def _is_shallower(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    members = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallower(member, depth - 1) for member in members)
