"""Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, once for each call."""

import json

from clients.gateway.parsers.calls import CallFormat, CallGrammar, CallParser
from clients.gateway.parsers.json_text import CallObject, MalformedCall
from clients.gateway.parsers.pieces import MarkerSearch, Piece, TextBeforeCalls

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(CallParser):
    """Calls may stand between texts."""

    def __init__(self) -> None:
        super().__init__(self._text)
        self._before = TextBeforeCalls(OPEN)
        self._behind = MarkerSearch(CLOSE)
        self._read = ""

    def _text(self, text: str) -> str:
        content, marker, rest = self._before.find(text)
        self.add_content(content)
        if marker:
            self._object, self._read = CallObject(self.start_call, self.add_arguments), ""
            self.state = self._call
        return rest

    def _call(self, text: str) -> str:
        self._read += text if not self._object.has_name else ""
        try:
            rest = self._object.read(text)
        except MalformedCall:
            return self._give_up(text)
        if self._object.is_done:
            self.state = self._end_of_call
        return rest

    def _give_up(self, text: str) -> str:
        """Of a call without a name everything is text."""
        if self._object.has_name:
            self.state = self._end_of_call
            return text
        self.add_content(OPEN)
        self.state = self._text
        return self._read

    def _end_of_call(self, text: str) -> str:
        _, marker, rest = self._behind.find(text)
        if marker:
            self.state = self._blanks
        return rest

    def _blanks(self, text: str) -> str:
        text = text.lstrip()
        if text:
            self.state = self._text
        return text

    def end(self) -> list[Piece]:
        """What was kept; a call that has no name yet is text."""
        if self.state == self._call and not self._object.has_name:
            self.add_content(OPEN + self._read)
        self.add_content(self._before.rest())
        return self.take()


def _grammar(grammar: CallGrammar) -> str:
    calls = []
    for tool in grammar.tools:
        begin = grammar.text(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
        calls.append(f'{begin} {grammar.json(tool.schema)} "}}"')
    call = grammar.rule(f'{grammar.text(OPEN)} "\\n" {grammar.one_of(calls)} "\\n" {grammar.text(CLOSE)}')
    return grammar.repeated(call, '"\\n"')


HERMES = CallFormat(lambda names: HermesParser(), _grammar, (OPEN, CLOSE))
