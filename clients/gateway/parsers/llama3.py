"""Llama 3: the whole answer is {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|>; several are parted by semicolons."""

import json
from collections.abc import Set

from clients.gateway.parsers.calls import CallFormat, CallGrammar, CallParser
from clients.gateway.parsers.json_text import CallObject, MalformedCall
from clients.gateway.parsers.pieces import Piece

TAG = "<|python_tag|>"
_KEYS = frozenset({"type", "name", "parameters", "arguments"})


class Llama3Parser(CallParser):
    """An object is a call only if its keys are those of a call and its name is that of a tool; other JSON is text."""

    def __init__(self, names: Set[str]) -> None:
        super().__init__(self._beginning)
        self._names = names
        self._held = ""

    def _beginning(self, text: str) -> str:
        self._held += text
        begun = self._held.lstrip()
        behind = begun.removeprefix(TAG).lstrip()
        if TAG.startswith(begun) or not behind:
            return ""
        if not behind.startswith("{"):
            self.state = self._text
            return self._take_held()
        self._held = self._held[: -len(behind)]
        return self._begin_object(behind)

    def _begin_object(self, text: str) -> str:
        self._object = CallObject(self._start_known, self.add_arguments, _KEYS)
        self.state = self._call
        return text

    def _start_known(self, name: str) -> None:
        if name not in self._names:
            raise MalformedCall(name)
        self.start_call(name)

    def _call(self, text: str) -> str:
        self._held += text
        try:
            rest = self._object.read(text)
        except MalformedCall:
            self.state = self._text
            return self._take_held()
        if self._object.is_done:
            self._held = ""
            self.state = self._between
        return rest

    def _between(self, text: str) -> str:
        text = text.lstrip("; \n")
        if text.startswith("{"):
            return self._begin_object(text)
        self.state = self._text if text else self.state
        return text

    def _text(self, text: str) -> str:
        self.add_content(text)
        return ""

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def end(self) -> list[Piece]:
        """What was kept; a call that has no name yet is text."""
        if self.state == self._beginning or (self.state == self._call and not self._object.has_name):
            self.add_content(self._held)
        return self.take()


def _grammar(grammar: CallGrammar) -> str:
    calls = []
    for tool in grammar.tools:
        begin = grammar.text(f'{{"name": {json.dumps(tool.name)}, "parameters": ')
        calls.append(f'{begin} {grammar.json(tool.schema)} "}}"')
    return grammar.repeated(grammar.one_of(calls), '"; "')


LLAMA3 = CallFormat(Llama3Parser, _grammar, ())
