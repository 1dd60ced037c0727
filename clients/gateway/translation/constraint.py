"""What an answer may be: calls of tools, text of a format, both or either, after the model's thoughts."""

import json
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from clients.gateway.errors import ApiError
from clients.gateway.parsers.calls import CallableTool, CallFormat, CallGrammar
from clients.gateway.parsers.reasoning import CLOSE, OPEN
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.schemas.tools import FunctionDefinition, JsonObjectFormat, JsonSchemaFormat, NamedToolChoice, ResponseFormat
from clients.gateway.translation.common import structured_fields

_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class Thoughts(Enum):
    """Whether the answer begins with thoughts."""

    NONE = auto()
    POSSIBLE = auto()  # if the model opens them
    OPEN = auto()  # the prompt has opened them


def response_constraint(response_format: ResponseFormat | None) -> dict[str, Any]:
    """The field of Request that holds a text to its format; none for any text."""
    if isinstance(response_format, JsonObjectFormat):
        return {"json_schema": json.dumps(_ANY_OBJECT)}
    if isinstance(response_format, JsonSchemaFormat):
        return {"json_schema": json.dumps(response_format.json_schema.schema_)}
    return {}


def chat_constraint(body: ChatRequest) -> dict[str, Any]:
    """The same, also for a constraint in the server's own terms; raises ApiError for both at once."""
    of_format, structured = response_constraint(body.response_format), structured_fields(body)
    if of_format and structured:
        raise ApiError(400, "give response_format or structured_outputs, not both", param="structured_outputs")
    return of_format | structured


def required_tools(body: ChatRequest) -> list[FunctionDefinition]:
    """The tools one of which has to be called; raises ApiError when there is no such tool."""
    tools = [tool.function for tool in body.tools or ()]
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return []
    if isinstance(choice, NamedToolChoice):
        tools = [tool for tool in tools if tool.name == choice.function.name]
    if not tools:
        wanted = f"function {choice.function.name!r}" if isinstance(choice, NamedToolChoice) else f"{choice!r}"
        raise ApiError(400, f"tool_choice: {wanted}, but tools has none such", param="tool_choice")
    return tools


def allows_several_calls(body: ChatRequest) -> bool:
    """Whether an answer may call more than once: a function that is named is called once, as OpenAI has it."""
    return body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedToolChoice)


class ConstraintWriter:
    """Writes the grammar of an answer for a model that writes calls in `call_format` and has some markers as tokens."""

    def __init__(self, call_format: CallFormat, marker_ids: Mapping[str, int], thoughts: Thoughts) -> None:
        self._format = call_format
        self._marker_ids = marker_ids
        self._thoughts = thoughts

    def calls(self, tools: Sequence[FunctionDefinition], is_parallel: bool) -> dict[str, Any]:
        """Calls, and nothing else, as a field of Request."""
        grammar = self._grammar(tools, is_parallel)
        return self._written(grammar, self._format.grammar(grammar))

    def text(self, constraint: dict[str, Any], tools: Sequence[FunctionDefinition], is_parallel: bool) -> dict[str, Any]:
        """Text under a constraint, or calls of the tools if there are any."""
        if not constraint or (self._thoughts is Thoughts.NONE and not tools):
            return constraint
        grammar = self._grammar(tools, is_parallel)
        kind, value = next(iter(constraint.items()))
        if kind == "grammar":
            raise ApiError(400, "structured_outputs.grammar: not beside tools, nor after thoughts", param="structured_outputs")
        answer = _text_rule(grammar, kind, value)
        return self._written(grammar, grammar.one_of([answer, grammar.rule(self._format.grammar(grammar))]) if tools else answer)

    def _grammar(self, tools: Sequence[FunctionDefinition], is_parallel: bool) -> CallGrammar:
        callable_tools = [CallableTool(tool.name, tool.parameters or _NO_ARGUMENTS) for tool in tools]
        return CallGrammar(callable_tools, is_parallel, self._marker_ids)

    def _written(self, grammar: CallGrammar, answer: str) -> dict[str, Any]:
        start = f"{self._thoughts_rule(grammar)} {answer}".strip()
        return {"grammar": "\n".join([f"start: {start}", *grammar.rules])}

    def _thoughts_rule(self, grammar: CallGrammar) -> str:
        if self._thoughts is Thoughts.NONE:
            return ""
        thoughts = grammar.rule(rf"/(.|\n)*/ {grammar.text(CLOSE)} /[ \n]{{0,4}}/")
        if self._thoughts is Thoughts.OPEN:
            return thoughts
        return f"{grammar.rule(f'{grammar.text(OPEN)} {thoughts}')}?"


def _text_rule(grammar: CallGrammar, kind: str, value: Any) -> str:
    if kind == "json_schema":
        return grammar.json(json.loads(value))
    if kind == "regex":
        escaped = value.replace("/", r"\/")
        return grammar.rule(f"/{escaped}/")
    return grammar.one_of([grammar.text(text) for text in value])
