"""Mistral: [TOOL_CALLS] and a list of objects, or in newer models [TOOL_CALLS]name[ARGS]{...}, once for each call."""

import json

from clients.gateway.parsers.calls import CallFormat, CallGrammar, CallParser, short_call_id
from clients.gateway.parsers.json_text import CallObject, MalformedCall, ValueEnd
from clients.gateway.parsers.pieces import MarkerSearch, Piece, TextBeforeCalls

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class MistralParser(CallParser):
    """Both ways of writing."""

    def __init__(self) -> None:
        super().__init__(self._text)
        self._before = TextBeforeCalls(CALLS)
        self._name_end = MarkerSearch(CALL_ID, ARGS, "{")
        self._args = MarkerSearch(ARGS)
        self._name = ""

    def _text(self, text: str) -> str:
        content, marker, rest = self._before.find(text)
        self.add_content(content)
        if marker:
            self._name = ""
            self.state = self._first_sign
        return rest

    def _first_sign(self, text: str) -> str:
        text = text.lstrip()
        if text:
            self.state = self._element if text[0] == "[" else self._in_name
        return text[1:] if text[:1] == "[" else text

    def _element(self, text: str) -> str:
        """Between the objects of a list."""
        text = text.lstrip(", \n")
        if text.startswith("{"):
            self._object = CallObject(self.start_call, self.add_arguments)
            self.state = self._in_object
        elif text:
            self.state = self._text
            return text.removeprefix("]")
        return text

    def _in_object(self, text: str) -> str:
        try:
            rest = self._object.read(text)
        except MalformedCall:
            self.state = self._text
            return text
        if self._object.is_done:
            self.state = self._element
        return rest

    def _in_name(self, text: str) -> str:
        name, marker, rest = self._name_end.find(text)
        self._name += name
        if not marker:
            return rest
        self.start_call(self._name.strip())
        self._begin_arguments()
        if marker == CALL_ID:
            self.state = self._in_id
        return marker + rest if marker == "{" else rest

    def _in_id(self, text: str) -> str:
        """The model's own id, which nobody has to know."""
        _, marker, rest = self._args.find(text)
        if marker:
            self._begin_arguments()
        return rest

    def _begin_arguments(self) -> None:
        self._value = ValueEnd()
        self.state = self._in_arguments

    def _in_arguments(self, text: str) -> str:
        end = self._value.find(text)
        self.add_arguments(text if end is None else text[:end])
        if end is None:
            return ""
        self.state = self._text
        return text[end:]

    def end(self) -> list[Piece]:
        """What was kept; a name that nothing follows is text."""
        if self.state == self._in_name:
            self.add_content(CALLS + self._name + self._name_end.rest())
        self.add_content(self._before.rest())
        return self.take()


def _grammar(grammar: CallGrammar) -> str:
    if ARGS in grammar.marker_ids:
        calls = [f"{grammar.text(CALLS + tool.name + ARGS)} {grammar.json(tool.schema)}" for tool in grammar.tools]
        return grammar.repeated(grammar.one_of(calls))
    calls = []
    for tool in grammar.tools:
        begin = grammar.text(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        calls.append(f'{begin} {grammar.json(tool.schema)} "}}"')
    several = grammar.repeated(grammar.one_of(calls), '", "')
    return f'{grammar.text(CALLS)} "[" {several} "]"'


MISTRAL = CallFormat(lambda names: MistralParser(), _grammar, (CALLS, ARGS), shows_special_tokens=True, make_id=short_call_id)
