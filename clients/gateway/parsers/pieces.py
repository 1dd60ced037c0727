"""What parsers make of a text, and the state machine that they share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of a tool; its arguments follow. `index` counts the calls of an answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = Content | Reasoning | CallStarted | CallArguments


class Parser(Protocol):
    """Takes the text of one choice in pieces of any size; how it is cut must not matter."""

    def feed(self, text: str) -> list[Piece]:
        """What is known after more text."""

    def end(self) -> list[Piece]:
        """What is left when no more text comes."""


class StateMachine:
    """A parser whose states take what they understand and give back the rest. A state that waits for more keeps the text itself."""

    def __init__(self, first: Callable[[str], str]) -> None:
        self.state = first
        self._pieces: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """Run the states until nothing is left."""
        while text:
            text = self.state(text)
        return self.take()

    def add(self, piece: Piece) -> None:
        """Tell a piece."""
        self._pieces.append(piece)

    def add_content(self, text: str) -> None:
        """Tell text for the user, if there is any."""
        if text:
            self._pieces.append(Content(text))

    def take(self) -> list[Piece]:
        """The pieces told since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces


class MarkerSearch:
    """Finds the first of some markers in a text that comes in pieces. What could be the beginning of one is kept until that is known."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._held = ""

    def find(self, text: str) -> tuple[str, str, str]:
        """Text before the marker, the marker, text behind it; without a marker: text that is none, and two empty ones."""
        text = self._held + text
        self._held = ""
        places = [(place, marker) for marker in self._markers if (place := text.find(marker)) >= 0]
        if places:
            place, marker = min(places)
            return text[:place], marker, text[place + len(marker) :]
        length = max(_overlap(text, marker) for marker in self._markers)
        if length:
            self._held = text[-length:]
            text = text[:-length]
        return text, "", ""

    def rest(self) -> str:
        """What was kept, when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, marker: str) -> int:
    """Length of the longest beginning of the marker that the text ends with."""
    return next((length for length in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:length])), 0)


class TextBeforeCalls:
    """Text for the user up to a marker that begins calls; blanks right before the marker belong to it."""

    def __init__(self, *markers: str) -> None:
        self._search = MarkerSearch(*markers)
        self._blanks = ""

    def find(self, text: str) -> tuple[str, str, str]:
        """As MarkerSearch does."""
        before, marker, rest = self._search.find(text)
        before = self._blanks + before
        kept = before.rstrip()
        self._blanks = "" if marker else before[len(kept) :]
        return kept, marker, rest

    def rest(self) -> str:
        """What was kept, when no more comes."""
        blanks, self._blanks = self._blanks, ""
        return blanks + self._search.rest()
