"""DeepSeek V3.2 and V4: calls in tags, with a tag for each argument, which is text as it is or else JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any

from clients.gateway.parsers.calls import CallableTool, CallFormat, CallGrammar, CallParser
from clients.gateway.parsers.pieces import MarkerSearch, Piece, TextBeforeCalls

DSML = "｜DSML｜"
_INVOKE, _INVOKE_END = f'<{DSML}invoke name="', f"</{DSML}invoke>"
_PARAMETER, _PARAMETER_END = f'<{DSML}parameter name="', f"</{DSML}parameter>"
_OPENS = (f"<{DSML}tool_calls>", f"<{DSML}function_calls>")
_LINE_END = '"\\n"'
_CLOSES = (f"</{DSML}tool_calls>", f"</{DSML}function_calls>")


class DeepSeekV4Parser(CallParser):
    """Makes JSON of the arguments while they come."""

    def __init__(self) -> None:
        super().__init__(self._text)
        self._before = TextBeforeCalls(*_OPENS)
        self._between_calls = MarkerSearch(_INVOKE, *_CLOSES)
        self._between_parameters = MarkerSearch(_PARAMETER, _INVOKE_END)
        self._head_end = MarkerSearch(">")
        self._value_end = MarkerSearch(_PARAMETER_END)
        self._head = ""
        self._separator = ""
        self._json = ""

    def _text(self, text: str) -> str:
        content, marker, rest = self._before.find(text)
        self.add_content(content)
        if marker:
            self.state = self._in_calls
        return rest

    def _in_calls(self, text: str) -> str:
        _, marker, rest = self._between_calls.find(text)
        if marker:
            self._head = ""
            self.state = self._in_invoke_head if marker == _INVOKE else self._text
        return rest

    def _in_invoke_head(self, text: str) -> str:
        head, marker, rest = self._head_end.find(text)
        self._head += head
        if marker:
            self.start_call(self._head.partition('"')[0])
            self.add_arguments("{")
            self._separator = ""
            self.state = self._in_invoke
        return rest

    def _in_invoke(self, text: str) -> str:
        _, marker, rest = self._between_parameters.find(text)
        if marker == _INVOKE_END:
            self.add_arguments("}")
            self.state = self._in_calls
        elif marker:
            self._head = self._json = ""
            self.state = self._in_parameter_head
        return rest

    def _in_parameter_head(self, text: str) -> str:
        head, marker, rest = self._head_end.find(text)
        self._head += head
        if marker:
            name, _, attributes = self._head.partition('"')
            is_text = 'string="false"' not in attributes
            begin = '"' if is_text else ""
            self.add_arguments(f"{self._separator}{json.dumps(name, ensure_ascii=False)}: {begin}")
            self._separator = ", "
            self.state = self._in_text if is_text else self._in_json
        return rest

    def _in_text(self, text: str) -> str:
        value, marker, rest = self._value_end.find(text)
        self.add_arguments(json.dumps(value, ensure_ascii=False)[1:-1])
        if marker:
            self.add_arguments('"')
            self.state = self._in_invoke
        return rest

    def _in_json(self, text: str) -> str:
        value, marker, rest = self._value_end.find(text)
        self._json += value
        if marker:
            self.add_arguments(_json_or_text(self._json))
            self.state = self._in_invoke
        return rest

    def end(self) -> list[Piece]:
        """What was kept."""
        self.add_content(self._before.rest())
        return self.take()


def _json_or_text(written: str) -> str:
    """What is no JSON although it should be is text: the arguments as a whole stay JSON."""
    try:
        json.loads(written)
    except ValueError:
        return json.dumps(written, ensure_ascii=False)
    return written


def _grammar(grammar: CallGrammar) -> str:
    call = grammar.one_of([_call(grammar, tool) for tool in grammar.tools])
    return f"{grammar.text(_OPENS[0])} {_LINE_END} {grammar.repeated(call)} {grammar.text(_CLOSES[0])}"


def _call(grammar: CallGrammar, tool: CallableTool) -> str:
    required = tool.schema.get("required", ())
    schemas = tool.schema.get("properties", {}).items()
    parameters = [_parameter(grammar, name, schema, name not in required) for name, schema in schemas]
    begin, end = grammar.text(f'{_INVOKE}{tool.name}">\n'), grammar.text(f"{_INVOKE_END}\n")
    return " ".join((begin, *parameters, end))


def _parameter(grammar: CallGrammar, name: str, schema: Mapping[str, Any], is_optional: bool) -> str:
    is_text = schema.get("type") == "string" and not re.search("pattern|format", " ".join(schema))
    begin = grammar.text(f'{_PARAMETER}{name}" string="{str(is_text).lower()}">')
    value = _text(grammar, schema) if is_text else grammar.json(schema)
    rule = grammar.rule(f"{begin} {value} {grammar.text(_PARAMETER_END)} {_LINE_END}")
    return f"{rule}?" if is_optional else rule


def _text(grammar: CallGrammar, schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return grammar.one_of([grammar.text(str(value)) for value in schema["enum"]])
    return r"/([^<]|<[^\/])*/"


DEEPSEEK_V4 = CallFormat(lambda names: DeepSeekV4Parser(), _grammar, (DSML,), shows_special_tokens=True)
