"""The model's chat template, rendered as transformers does it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

#: Names that a template finds set, whatever a client says.
RESERVED_ARGUMENTS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now"}
)

#: What a template can raise on messages that it does not expect.
_RENDER_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


#: What compiling a template raises beside its own error: Python compiles the code that jinja2 makes of it.
_COMPILE_ERRORS = (MemoryError, OverflowError, SyntaxError, TypeError, ValueError)


class TemplateBroken(ValueError):
    """The template can not be compiled; the message says why, in one line."""


class TemplateRefused(ValueError):
    """The template can not render these messages; the message says why."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template renders, in the shapes that transformers' templates expect."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)  # none of RESERVED_ARGUMENTS
    add_generation_prompt: bool = True


class ChatTemplate:
    """Renders conversations. `source` is trusted as the model is, but sandboxed; raises TemplateBroken.

    `tool_source` takes its place when tools are offered: some models have a template of its own for that.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], tool_source: str | None = None) -> None:
        self._template = _compiled(source)
        self._tool_template = self._template if tool_source is None else _compiled(tool_source)
        self._special_tokens = dict(special_tokens)
        #: Whether a conversation may have tools; a template that does not look at them would drop them silently.
        self.knows_tools = any(name.name == "tools" for name in _environment().parse(tool_source or source).find_all(jinja2.nodes.Name))

    def render(self, conversation: Conversation) -> str:
        """The prompt text of a conversation, special tokens spelled out; raises TemplateRefused."""
        template = self._tool_template if conversation.tools else self._template
        try:
            return template.render(
                {
                    **self._special_tokens,
                    **conversation.arguments,
                    "messages": conversation.messages,
                    "tools": conversation.tools or None,
                    "documents": None,
                    "add_generation_prompt": conversation.add_generation_prompt,
                }
            )
        except _RENDER_ERRORS as error:
            raise TemplateRefused(str(error) or type(error).__name__) from error


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
    environment.globals["strftime_now"] = _strftime_now
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


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
