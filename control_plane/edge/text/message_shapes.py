"""The shapes in which chat templates expect messages: of what can be written in several ways, each template knows one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from jinja2 import nodes

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Arguments of a call: what the model wrote, and what it means if that is a JSON object."""

    text: str
    value: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to write messages."""

    content_in_parts: bool = False  # [{"type": "text", "text": ...}]
    arguments_as_text: bool = False
    empty_content: str | None = ""  # of a message that has calls and no text

    def write(self, message: Message) -> dict[str, Any]:
        """A message as a template takes it."""
        written = dict(message)
        if "tool_calls" in message:
            written["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
            written["content"] = message.get("content") or self.empty_content
        if self.content_in_parts and written.get("content") is not None:
            written["content"] = [{"type": "text", "text": written["content"]}]
        return written

    def _call(self, call: Message) -> dict[str, Any]:
        arguments: CallArguments = call["function"]["arguments"]
        as_text = self.arguments_as_text or arguments.value is None
        return {**call, "function": {**call["function"], "arguments": arguments.text if as_text else arguments.value}}


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What the source of a template tells about the shapes it knows."""

    iterates_content: bool
    tests_for_no_content: bool

    @staticmethod
    def of(template: nodes.Template) -> "TemplateTraits":
        """Look at every loop and every test."""
        tests = [node.node for node in template.find_all(nodes.Test) if node.name == "none"]
        for node in template.find_all(nodes.Compare):
            if any(isinstance(operand.expr, nodes.Const) and operand.expr.value is None for operand in node.ops):
                tests.append(node.expr)
        return TemplateTraits(any(_is_content(loop.iter) for loop in template.find_all(nodes.For)), any(map(_is_content, tests)))

    def shapes(self, messages: Sequence[Message]) -> Iterator[Shape]:
        """Shapes to try, the usual one first."""
        calls = [message for message in messages if "tool_calls" in message]
        empty: tuple[str | None, ...] = ("",)
        if self.tests_for_no_content and calls:
            empty = ("", None) if any(message.get("content") == "" for message in calls) else (None, "")
        objects = any(call["function"]["arguments"].value is not None for message in calls for call in message["tool_calls"])
        for in_parts, as_text, nothing in product((False, True)[: 1 + self.iterates_content], (False, True)[: 1 + objects], empty):
            yield Shape(in_parts, as_text, nothing)


def _is_content(node: nodes.Node) -> bool:
    """Whether an expression is about the content of a message, as far as names tell."""
    parts = [node, *node.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))]
    return any(
        (isinstance(part, nodes.Getattr) and part.attr == "content")
        or (isinstance(part, nodes.Getitem) and isinstance(part.arg, nodes.Const) and part.arg.value == "content")
        or (isinstance(part, nodes.Name) and "content" in part.name)
        for part in parts
    )


class Marks:
    """Marks in all that a conversation must not lose: what a template writes of marked messages tells whether it would.

    Some templates know neither calls nor what tools answer, or look for text in parts of a content alone, and pass over the rest.
    """

    def __init__(self, nonce: str, with_user: bool) -> None:
        self._nonce = nonce
        self._roles = ("tool", "user") if with_user else ("tool",)
        self._places: dict[str, str] = {}  # what a mark is in, by mark

    def put(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with marks in the arguments of calls and at the ends of contents."""
        return [self._marked(message, f"messages[{index}]") for index, message in enumerate(messages)]

    def lost(self, text: str) -> str:
        """What a rendering of the marked messages lacks, as a path; empty when it lacks nothing."""
        return next((place for mark, place in self._places.items() if mark not in text), "")

    def are_in_python(self, text: str) -> bool:
        """Whether an object is written as Python writes it, which no model has learned: the template expects text."""
        return any(f"'{mark}': '{mark}'" in text for mark in self._places)

    def _mark(self, place: str) -> str:
        mark = f"{self._nonce}n{len(self._places)}e"
        self._places[mark] = place
        return mark

    def _marked(self, message: Message, path: str) -> Message:
        marked = dict(message)
        if message["role"] in self._roles and message.get("content"):
            marked["content"] = message["content"] + self._mark(f"{path}.content")
        if "tool_calls" in message:
            marked["tool_calls"] = [self._call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message["tool_calls"])]
        return marked

    def _call(self, call: Message, path: str) -> Message:
        function = call["function"]
        arguments, mark = function["arguments"], self._mark(path)
        value = None if arguments.value is None else {**arguments.value, mark: mark}
        marked = CallArguments(f"{arguments.text}{mark}" if value is None else f'{{"{mark}": "{mark}"}}', value)
        return {**call, "function": {**function, "arguments": marked}}


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value, or the arguments of a call, with all its texts changed."""
    match value:
        case str():
            return change(value)
        case CallArguments():
            return replace(value, text=change(value.text), value=mapped(value.value, change))
        case Mapping():
            return {name: mapped(member, change) for name, member in value.items()}
        case list() | tuple():
            return [mapped(member, change) for member in value]
    return value
