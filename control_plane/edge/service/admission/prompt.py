"""Turns prompts into token ids, and conversations into what chat templates render, without holding the event loop up."""

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.errors import FailedPrecondition, InvalidArgument
from control_plane.edge.text.chat_template import RESERVED_ARGUMENTS, ChatTemplate, Conversation, TemplateRefused
from control_plane.edge.text.literal_text import LiteralTexts
from control_plane.edge.text.message_shapes import CallArguments
from control_plane.edge.text.tokenizer import Encoding, TokenizerFailed
from pypto_serving.inference.v1 import inference_pb2

_MAX_TOOLS = 128
_MAX_CALLS = 128  # of a message
_MAX_ARGUMENTS = 64
_MAX_DOCUMENTS = 1024
_MAX_ARGUMENT_NAME = 64

#: A template may indent JSON, which makes its text longer by the depth; both together bound what a rendering can take.
_MAX_JSON_CHARACTERS = 1 << 19
_MAX_JSON_DEPTH = 32

#: Names by which templates know what a model thought before it answered.
_REASONING = ("reasoning_content", "thinking")

#: Of a tool that takes no arguments.
_NO_PARAMETERS = {"type": "object", "properties": {}}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Shorter texts are encoded faster than they are handed to a thread.
_INLINE_CHARACTERS = 1000

#: Texts that have more for every token of the limit rarely fit, and can take gigabytes: they are counted in parts before they are encoded.
_USUAL_CHARACTERS_PER_TOKEN = 4
_PART_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """Refuses what cannot fit, at the cost of looking at a length. `reason` ends the message to the client."""

    tokens: int
    characters: int
    messages: int
    reason: str = ""

    def check_characters(self, field: str, size: int) -> None:
        """Require a text of at most so many characters; raises InvalidArgument."""
        if size > self.characters:
            raise InvalidArgument(f"{field} has {size} characters, may have at most {self.characters}{self.reason}")

    def check_messages(self, field: str, size: int) -> None:
        """Require a conversation of at most so many messages; raises InvalidArgument."""
        if size > self.messages:
            raise InvalidArgument(f"{field} has {size} entries, may have at most {self.messages}{self.reason}")

    def check_tokens(self, field: str, size: int) -> None:
        """Require a text, of which `size` tokens were found so far, to have at most so many; raises InvalidArgument."""
        if size > self.tokens:
            raise InvalidArgument(f"{field} has more than {self.tokens} tokens{self.reason}")


def context_prompt_limit(max_model_len: int, max_token_characters: int) -> PromptLimit:
    """The limit for prompts of a model: no token has more characters, and every template writes a token per message."""
    reason = f": a request may have {max_model_len} tokens, of at most {max_token_characters} characters each"
    return PromptLimit(max_model_len, max_model_len * max_token_characters, max_model_len, reason)


def check_chat(chat: inference_pb2.Chat, path: str, limit: PromptLimit) -> None:
    """Check sizes, before anything is copied; raises InvalidArgument."""
    if not chat.messages:
        raise InvalidArgument(f"{path}.messages is empty, must have at least one message")
    limit.check_messages(f"{path}.messages", len(chat.messages))
    _check_count(f"{path}.tools", len(chat.tools), _MAX_TOOLS)
    _check_count(f"{path}.template_arguments", len(chat.template_arguments), _MAX_ARGUMENTS)
    _check_count(f"{path}.documents", len(chat.documents), _MAX_DOCUMENTS)
    for index, message in enumerate(chat.messages):
        _check_count(f"{path}.messages[{index}].tool_calls", len(message.tool_calls), _MAX_CALLS)
    num_characters = 0
    for message in chat.messages:
        num_characters += sum(map(len, (message.role, message.content, message.reasoning_content, message.name, message.tool_call_id)))
        num_characters += sum(len(call.id) + len(call.name) + len(call.arguments) for call in message.tool_calls)
    limit.check_characters(f"{path}.messages", num_characters)
    values = sum(len(name) + len(value.string_value) for name, value in chat.template_arguments.items())
    limit.check_characters(f"{path}.template_arguments", values)
    tools = sum(len(tool.name) + len(tool.description) + len(tool.parameters_schema) for tool in chat.tools)
    calls = sum(len(call.arguments) for message in chat.messages for call in message.tool_calls)
    values = sum(_size(value) for value in chat.template_arguments.values()) + sum(
        len(name) + _size(value) for document in chat.documents for name, value in document.fields.items()
    )
    if tools + calls + values > _MAX_JSON_CHARACTERS:
        raise InvalidArgument(
            f"{path}: tools, documents, arguments of tool calls, and lists and objects in template_arguments"
            f" have {tools + calls + values} characters, may have at most {_MAX_JSON_CHARACTERS}"
        )


def conversation_of(chat: inference_pb2.Chat, path: str) -> Conversation:
    """A checked chat as a template takes it; raises InvalidArgument."""
    continues = _continues(chat, path)
    return Conversation(
        messages=[_message(message, f"{path}.messages[{index}]") for index, message in enumerate(chat.messages)],
        tools=[_tool(tool, f"{path}.tools[{index}]") for index, tool in enumerate(chat.tools)],
        documents=[_object(document, f"{path}.documents[{index}]") for index, document in enumerate(chat.documents)],
        arguments=_arguments(chat.template_arguments, f"{path}.template_arguments"),
        add_generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not continues,
        continue_final_message=continues,
    )


def _continues(chat: inference_pb2.Chat, path: str) -> bool:
    if chat.continue_final_message:
        if chat.add_generation_prompt:
            raise InvalidArgument(f"{path}.add_generation_prompt is true, must be false or absent beside continue_final_message")
        if not chat.messages[-1].content or chat.messages[-1].tool_calls:
            last = f"{path}.messages[{len(chat.messages) - 1}]"
            raise InvalidArgument(f"{last} must have content and no tool_calls, so that continue_final_message can go on with it")
    return chat.continue_final_message


def _check_count(field: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArgument(f"{field} has {size} entries, may have at most {limit}")


def _message(message: inference_pb2.ChatMessage, path: str) -> dict[str, Any]:
    if not message.role:
        raise InvalidArgument(f"{path}.role is empty, must say who speaks")
    if not message.HasField("content") and not message.tool_calls:
        raise InvalidArgument(f"{path}.content is absent, must be given unless there are tool calls (it may be empty)")
    fields: dict[str, Any] = {"role": message.role}
    if message.HasField("content"):
        fields["content"] = message.content
    if message.HasField("reasoning_content"):
        fields |= dict.fromkeys(_REASONING, message.reasoning_content)
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.name:
        fields["name"] = message.name
    return fields


def _tool_call(call: inference_pb2.ToolCall, path: str) -> dict[str, Any]:
    """Arguments that are a JSON object have a value, as templates write objects in a form of their own; no arguments are an empty one."""
    if not call.name:
        raise InvalidArgument(f"{path}.name is empty, must name the function")
    text = call.arguments if call.arguments.strip() else "{}"
    try:
        parsed = _parsed(text, f"{path}.arguments")
    except ValueError:
        parsed = None
    arguments = CallArguments(text, parsed if isinstance(parsed, dict) else None)
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
            shown = repr(name[:_MAX_ARGUMENT_NAME])
            raise InvalidArgument(f"{path}: {shown} is no name: at most {_MAX_ARGUMENT_NAME} letters, digits and _, and no digit first")
        if name in RESERVED_ARGUMENTS or name.endswith("_token"):
            raise InvalidArgument(f"{path}: {name!r} is set by the server, must be absent")
        values[name] = _value(value, f"{path}[{name!r}]")
    return values


def _object(message: inference_pb2.TemplateObject, path: str, depth: int = 1) -> dict[str, Any]:
    return {name: _value(value, f"{path}[{name!r}]", depth) for name, value in message.fields.items()}


def _value(value: inference_pb2.TemplateValue, path: str, depth: int = 0) -> Any:
    """A value as a template takes it."""
    if depth > _MAX_JSON_DEPTH:
        raise InvalidArgument(f"{path} is nested more than {_MAX_JSON_DEPTH} levels deep")
    match value.WhichOneof("kind"):
        case None:
            raise InvalidArgument(f"{path} has no value")
        case "null_value":
            return None
        case "list_value":
            return [_value(entry, f"{path}[{index}]", depth + 1) for index, entry in enumerate(value.list_value.values)]
        case "object_value":
            return _object(value.object_value, path, depth + 1)
        case kind:
            return _finite(getattr(value, kind), path)


def _size(value: inference_pb2.TemplateValue) -> int:
    """Characters of what is in lists and objects, and one for every value."""
    match value.WhichOneof("kind"):
        case "list_value":
            return 1 + sum(len(entry.string_value) + _size(entry) for entry in value.list_value.values)
        case "object_value":
            return 1 + sum(len(name) + len(entry.string_value) + _size(entry) for name, entry in value.object_value.fields.items())
    return 1


def _parsed(text: str, path: str) -> Any:
    """The value of a JSON text; ValueError when it is no JSON, InvalidArgument when a template could not write it."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidArgument(f"{path} is nested more than {_MAX_JSON_DEPTH} levels deep") from None
    if isinstance(value, dict | list):
        _check_writable(value, path)
    return value


def _check_writable(value: Any, path: str, depth: int = 0) -> None:
    """Raise InvalidArgument for what a prompt cannot hold: half a character, no number; and for what is nested too deep."""
    match value:
        case str():
            _check_whole(value, path)
        case float():
            _finite(value, path)
        case dict() | list():
            if depth >= _MAX_JSON_DEPTH:
                raise InvalidArgument(f"{path} is nested more than {_MAX_JSON_DEPTH} levels deep")
            for member in value.values() if isinstance(value, dict) else value:
                _check_writable(member, path, depth + 1)
            for name in value if isinstance(value, dict) else ():
                _check_whole(name, path)


def _check_whole(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        raise InvalidArgument(f"{path} holds \\u{half:04x} alone, which is half of a character") from None


def _finite(value: Any, path: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"{path} holds NaN, an infinity or a number beyond 1.8e308, must be finite")
    return value


class PromptEncoder:
    """Encodes texts and chats; long ones on threads of its own. Used on the clients' event loop."""

    def __init__(self, model: ServedModel, num_threads: int = 2) -> None:
        self._tokenizer = model.tokenizer
        self._template = model.chat_template
        self._literal_texts: dict[str, LiteralTexts] = {}  # by what the template can write
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenizer")
        self._compilers = ThreadPoolExecutor(num_threads, thread_name_prefix="constraint")  # may be busy for seconds

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._compilers.shutdown(wait=False, cancel_futures=True)

    async def text(self, text: str, limit: PromptLimit, add_special_tokens: bool = True, with_offsets: bool = False) -> Encoding:
        """Encode plain text; raises a RequestError when it is too long."""
        limit.check_characters("text", len(text))
        return await self._encode("text", text, limit, lambda part: self._tokenizer.encode(part, add_special_tokens, with_offsets))

    async def chat(self, chat: inference_pb2.Chat, path: str, limit: PromptLimit, with_offsets: bool = False) -> Encoding:
        """Render a conversation and encode it; the template writes all special tokens. Raises a RequestError."""
        check_chat(chat, path, limit)
        if self._template is None:
            raise FailedPrecondition(
                f"{path}: the model has no chat template; send the prompt as text, or start the server with --chat-template FILE"
            )
        if chat.tools and not self._template.knows_tools:
            raise InvalidArgument(f"{path}.tools is set, must be absent: the model's chat template does not know tools")
        if chat.documents and not self._template.knows_documents(beside_tools=bool(chat.tools)):
            raise InvalidArgument(f"{path}.documents is set, must be absent: the model's chat template does not know documents")
        literal = await self._literal(self._template.texts(bool(chat.tools))) if chat.literal_text else None
        text = await self.run(chat.ByteSize(), _render, self._template, chat, path, limit, literal)
        if literal:
            return await self._encode(path, text, limit, lambda part: literal.encode(part, with_offsets))
        return await self._encode(path, text, limit, lambda part: self._tokenizer.encode(part, False, with_offsets))

    async def detokenize(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Text of token ids."""
        try:
            return await self.run(len(token_ids), self._tokenizer.decode, token_ids, skip_special_tokens)
        except TokenizerFailed as error:
            raise InvalidArgument(f"token_ids: the model's tokenizer fails on them: {error}") from None

    async def compile(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a function that makes constraints, on a thread on which no prompt waits."""
        return await asyncio.get_running_loop().run_in_executor(self._compilers, lambda: function(*args, **kwargs))

    async def run(self, size: int, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a function whose cost grows with `size`, on a thread if that is much."""
        if size <= _INLINE_CHARACTERS:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def _literal(self, template_texts: str) -> LiteralTexts:
        if template_texts not in self._literal_texts:
            made = await asyncio.get_running_loop().run_in_executor(self._threads, LiteralTexts, self._tokenizer, template_texts)
            self._literal_texts[template_texts] = made
        return self._literal_texts[template_texts]

    async def _encode(self, field: str, text: str, limit: PromptLimit, encode: Callable[[str], Encoding]) -> Encoding:
        try:
            if len(text) > limit.tokens * _USUAL_CHARACTERS_PER_TOKEN:
                await self.run(len(text), _check_in_parts, encode, field, text, limit)
            return await self.run(len(text), encode, text)
        except TokenizerFailed as error:
            raise InvalidArgument(f"{field}: the model's tokenizer fails on it: {error}") from None


def _render(template: ChatTemplate, chat: inference_pb2.Chat, path: str, limit: PromptLimit, literal: LiteralTexts | None) -> str:
    conversation = conversation_of(chat, path)
    try:
        text = template.render(literal.marked(conversation) if literal else conversation)
    except TemplateRefused as error:
        raise InvalidArgument(f"{path}.messages: the chat template refuses them: {error}") from None
    limit.check_characters(f"{path}, rendered,", len(text))
    return text


def _check_in_parts(encode: Callable[[str], Encoding], field: str, text: str, limit: PromptLimit) -> None:
    """Refuse a text that surely has too many tokens. A cut adds a few tokens, far fewer than the half that is not counted."""
    num_tokens = 0
    for start in range(0, len(text), _PART_CHARACTERS):
        num_tokens += len(encode(text[start : start + _PART_CHARACTERS]).token_ids)
        limit.check_tokens(field, num_tokens // 2)
