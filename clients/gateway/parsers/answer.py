"""The parser of one choice: reasoning first, calls in what follows."""

from collections.abc import Mapping, Sequence

from clients.gateway.parsers.calls import CallFormat
from clients.gateway.parsers.deepseek_v3 import DEEPSEEK_V3, DEEPSEEK_V31
from clients.gateway.parsers.deepseek_v4 import DEEPSEEK_V4
from clients.gateway.parsers.hermes import HERMES
from clients.gateway.parsers.llama3 import LLAMA3
from clients.gateway.parsers.mistral import MISTRAL
from clients.gateway.parsers.pieces import CallArguments, CallStarted, Content, MarkerSearch, Parser, Piece
from clients.gateway.parsers.reasoning import ReasoningParser

#: By the names that --tool-parser takes.
FORMATS: Mapping[str, CallFormat] = {
    "hermes": HERMES,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3.1": DEEPSEEK_V31,
    "deepseek-v4": DEEPSEEK_V4,
}

_BY_ARCHITECTURE = {
    "Llama": "llama3",
    "Mistral": "mistral",
    "Mixtral": "mistral",
    "DeepseekV32": "deepseek-v4",
    "DeepseekV4": "deepseek-v4",
    "DeepseekV3": "deepseek-v3",
}


def format_of(architecture: str) -> str:
    """The format that models of an architecture write calls in, as far as that is known; otherwise Hermes'."""
    return next((name for start, name in _BY_ARCHITECTURE.items() if architecture.startswith(start)), "hermes")


class AnswerParser:
    """Takes the text of a choice apart. `hidden` are names of tokens that are shown only because markers of calls are."""

    def __init__(
        self, reasoning: ReasoningParser | None, calls: Parser | None, hidden: Sequence[str] = (), is_parallel: bool = True
    ) -> None:
        self._reasoning, self._calls = reasoning, calls
        self._hidden = MarkerSearch(*hidden) if hidden else None
        self._is_parallel = is_parallel

    def feed(self, text: str) -> list[Piece]:
        """What is known after more text."""
        if self._hidden:
            text = self._without_hidden(text)
        if self._reasoning is None:
            return self._feed_calls(text) if text else []
        pieces: list[Piece] = []
        for piece in self._reasoning.feed(text):
            pieces += self._feed_calls(piece.text) if isinstance(piece, Content) else [piece]
        return pieces

    def end(self) -> list[Piece]:
        """What is left when no more text comes."""
        pieces = self.feed(self._hidden.rest()) if self._hidden else []
        for piece in self._reasoning.end() if self._reasoning else []:
            pieces += self._feed_calls(piece.text) if isinstance(piece, Content) else [piece]
        return pieces + (self._allowed(self._calls.end()) if self._calls else [])

    def _feed_calls(self, text: str) -> list[Piece]:
        return self._allowed(self._calls.feed(text)) if self._calls else [Content(text)]

    def _allowed(self, pieces: list[Piece]) -> list[Piece]:
        """Without calls that were not to be made beside the first one."""
        if self._is_parallel:
            return pieces
        return [piece for piece in pieces if not (isinstance(piece, CallStarted | CallArguments) and piece.index > 0)]

    def _without_hidden(self, text: str) -> str:
        assert self._hidden is not None
        shown = ""
        while text:
            before, _, text = self._hidden.find(text)
            shown += before
        return shown
