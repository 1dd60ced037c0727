"""The model's chat template, rendered as transformers does it."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from control_plane.edge.text.message_shapes import Marks, Message, Shape, TemplateTraits

#: Names that a template finds set, whatever a client says.
RESERVED_ARGUMENTS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now"}
)

#: What a template can raise on messages that it does not expect.
_RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

#: What compiling a template raises beside its own error: Python compiles the code that jinja2 makes of it.
_COMPILE_ERRORS = (MemoryError, OverflowError, SyntaxError, TypeError, ValueError)

#: Stands behind the message that is to be continued. The blank shows whether the template trims what it writes.
_CONTINUED = "END_OF_THE_MESSAGE_TO_BE_CONTINUED "


class TemplateBroken(ValueError):
    """The template cannot be compiled; the message says why, in one line."""


class TemplateRefused(ValueError):
    """The template cannot render these messages; the message says why."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template renders, in the shapes that transformers' templates expect; `message_shapes` has what they do not agree on."""

    messages: Sequence[Message]  # arguments of calls are CallArguments
    tools: Sequence[Mapping[str, Any]] = ()
    documents: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)  # none of RESERVED_ARGUMENTS
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the text ends within the last message, whose content is a text


class ChatTemplate:
    """Renders conversations. `source` is trusted as the model is, but sandboxed; raises TemplateBroken.

    `tool_source` takes its place when tools are offered: some models have a template of its own for that. Some have no other.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        self._template = None if source is None else _Compiled(source)
        self._tool_template = self._template if tool_source is None else _Compiled(tool_source)
        self._special_tokens = dict(special_tokens)

    @property
    def knows_tools(self) -> bool:
        """Whether a conversation may have tools; a template that does not look at them would drop them silently."""
        return self._tool_template is not None and "tools" in self._tool_template.names

    def knows_documents(self, beside_tools: bool) -> bool:
        """Whether a conversation may have documents."""
        template = self._tool_template if beside_tools else self._template
        return template is not None and "documents" in template.names

    def texts(self, beside_tools: bool) -> str:
        """What the template can write by itself, as one text."""
        template = self._tool_template if beside_tools else self._template
        return "" if template is None else template.texts

    def render(self, conversation: Conversation) -> str:
        """The prompt text of a conversation, special tokens spelled out; raises TemplateRefused."""
        template = self._tool_template if conversation.tools else self._template
        if template is None:
            raise TemplateRefused("the model has no template for conversations without tools")
        refusals: list[TemplateRefused] = []
        for shape in template.traits.shapes(conversation.messages):
            try:
                text = self._rendered(template, conversation, shape)
                self._require_all(template, conversation, shape)
            except TemplateRefused as error:
                refusals.append(error)
            else:
                return text
        raise refusals[0]

    def _require_all(self, template: "_Compiled", conversation: Conversation, shape: Shape) -> None:
        """Raise TemplateRefused when a message would be lost on the way."""
        iterates = template.traits.iterates_content
        if not (iterates or any("tool_calls" in message or message["role"] == "tool" for message in conversation.messages)):
            return
        marks = Marks(secrets.token_hex(8), with_user=iterates)
        marked = replace(conversation, messages=marks.put(conversation.messages), continue_final_message=False)
        try:
            text = self._rendered(template, marked, shape)
        except TemplateRefused:
            return  # it refuses the marks themselves
        if marks.are_in_python(text):
            raise TemplateRefused("it takes the arguments of calls as text")
        if lost := marks.lost(text):
            raise TemplateRefused(f"it does not write {lost}")

    def _rendered(self, template: "_Compiled", conversation: Conversation, shape: Shape) -> str:
        messages = list(conversation.messages)
        if conversation.continue_final_message:
            messages[-1] = {**messages[-1], "content": messages[-1]["content"] + _CONTINUED}
        variables = {
            **self._special_tokens,
            **conversation.arguments,
            "messages": [shape.write(message) for message in messages],
            "tools": conversation.tools or None,
            "documents": conversation.documents or None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            text = template.template.render(variables)
        except _RENDER_ERRORS as error:
            raise TemplateRefused(str(error) or type(error).__name__) from error
        return _before_mark(text, conversation.messages[-1]["content"]) if conversation.continue_final_message else text


def _before_mark(text: str, content: str) -> str:
    """A rendering up to the end of the last message, which carries a mark."""
    end = text.rfind(_CONTINUED.strip())
    if end < 0 or content.strip() not in text:
        raise TemplateRefused("it does not write the whole message that is to be continued")
    return text[:end] if text.startswith(_CONTINUED, end) else text[:end].rstrip()


class _Compiled:
    """A template, and what its source tells about it."""

    def __init__(self, source: str) -> None:
        self.template = _compiled(source)
        parsed = _environment().parse(source)
        self.traits = TemplateTraits.of(parsed)
        self.names = frozenset(name.name for name in parsed.find_all(jinja2.nodes.Name))
        constants = [node.value for node in parsed.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
        self.texts = "\0".join([*(node.data for node in parsed.find_all(jinja2.nodes.TemplateData)), *constants])


def _compiled(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateBroken(f"line {error.lineno}: {error.message}") from None
    except RecursionError:
        raise TemplateBroken("nested too deep") from None
    except _COMPILE_ERRORS as error:
        raise TemplateBroken(str(error) or type(error).__name__) from None


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's text for training; what it encloses is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (declared by jinja2)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML, which a model has never seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
