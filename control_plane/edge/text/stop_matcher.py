"""Stop strings: found across tokens, and never shown in part."""

from bisect import bisect_left
from collections.abc import Sequence


class StopStrings:
    """The stop strings of a request, arranged for search. Immutable; shared by all its sequences, and no larger than the strings."""

    __slots__ = ("_alphabetic", "first_characters", "longest_first", "max_length")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everything"
        self._alphabetic = sorted(set(stops))
        self.longest_first = sorted(self._alphabetic, key=len, reverse=True)
        self.max_length = len(self.longest_first[0])
        self.first_characters = frozenset(stop[0] for stop in stops)

    def any_starts_with(self, beginning: str) -> bool:
        """Whether `beginning` can become a stop string. Strings that start with it follow it at once in alphabetic order."""
        index = bisect_left(self._alphabetic, beginning)
        return index < len(self._alphabetic) and self._alphabetic[index].startswith(beginning)


class StopMatcher:
    """Looks for stop strings in the text of one sequence and holds back what could still become one.

    The text ends with the first piece after which it contains a stop string; of several, the one that starts first, of these the longest.
    """

    __slots__ = ("_held", "_include_stop", "_stops", "matched")

    def __init__(self, stops: StopStrings, include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""  # the longest end of the text so far that a stop string starts with
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Take more text; returns what may be shown. After a match nothing may be pushed."""
        assert self.matched is None, "text after a stop string"
        if not self._held and self._stops.first_characters.isdisjoint(piece):
            return piece
        text = self._held + piece
        start = self._search(text, len(self._held))
        if self.matched is None:
            shown = self._num_harmless(text)
            self._held = text[shown:]
            return text[:shown]
        self._held = ""
        return text[: start + len(self.matched)] if self._include_stop else text[:start]

    def finish(self) -> str:
        """Return the text held back: nothing follows that could make it a stop string."""
        text, self._held = self._held, ""
        return text

    def _search(self, text: str, num_held: int) -> int:
        """Set `matched` if a stop string ends in text[num_held:], where new ones do; returns where it starts."""
        first = len(text)
        for stop in self._stops.longest_first:
            start = text.find(stop, max(0, num_held - len(stop) + 1))
            if 0 <= start < first:
                first, self.matched = start, stop
        return first

    def _num_harmless(self, text: str) -> int:
        """Characters before the longest end that can become a stop string. Starts given up are not tried again: one try per character."""
        for start in range(max(0, len(text) - self._stops.max_length + 1), len(text)):
            if self._stops.any_starts_with(text[start:]):
                return start
        return len(text)
