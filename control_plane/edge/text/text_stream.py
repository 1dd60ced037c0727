"""The text of one sequence: stop strings, found across tokens and never shown in part."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from control_plane.edge.text.detokenizer import Detokenizer

#: A closer look is taken only where a text has so many first characters of a stop string.
_OPENING_CHARACTERS = 4


class StopStrings:
    """The stop strings of a request, arranged for search. Immutable; shared by all its sequences, and no larger than the strings."""

    __slots__ = ("_alphabetic", "_opening", "_shorter", "longest_first", "max_length")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everything"
        self._alphabetic = sorted(set(stops))
        self._shorter = _longest_beginnings(self._alphabetic)
        self.longest_first = sorted(self._alphabetic, key=len, reverse=True)
        self.max_length = len(self.longest_first[0])
        self._opening = _opening(self._alphabetic)

    def __len__(self) -> int:
        return len(self._alphabetic)

    def next_opening(self, text: str, start: int = 0) -> int:
        """Where at `start` or after a stop string may begin, or -1; nowhere else is worth a closer look."""
        found = self._opening.search(text, start)
        return found.start() if found else -1

    def any_starts_with(self, beginning: str) -> bool:
        """Whether `beginning` can become a stop string. Strings that start with it follow it at once in alphabetic order."""
        index = bisect_left(self._alphabetic, beginning)
        return index < len(self._alphabetic) and self._alphabetic[index].startswith(beginning)

    def longest_beginning(self, text: str) -> str | None:
        """The longest stop string that `text` starts with. The last one before it in alphabetic order is it, or starts with it."""
        index = bisect_right(self._alphabetic, text) - 1
        while index >= 0 and not text.startswith(self._alphabetic[index]):
            index = self._shorter[index]
        return self._alphabetic[index] if index >= 0 else None


def _opening(stops: Sequence[str]) -> re.Pattern[str]:
    """Finds the first characters of a stop string, or less of them at the end of a text."""
    return re.compile(_one_of({stop[:_OPENING_CHARACTERS] for stop in stops}))


def _one_of(openings: Set[str]) -> str:
    """Matches each of some texts, and the end of the text in place of the rest of one; as a tree."""
    if "" in openings:
        return ""
    rests: dict[str, set[str]] = {}
    for opening in openings:
        rests.setdefault(opening[0], set()).add(opening[1:])
    return "|".join(re.escape(first) + ("" if "" in rest else rf"(?:{_one_of(rest)}|\Z)") for first, rest in rests.items())


def _longest_beginnings(alphabetic: list[str]) -> list[int]:
    """For each string the index of the longest other one that it starts with, or -1."""
    beginnings: list[int] = []
    for index, text in enumerate(alphabetic):
        before = index - 1
        while before >= 0 and not text.startswith(alphabetic[before]):
            before = beginnings[before]
        beginnings.append(before)
    return beginnings


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
        if not self._held and self._stops.next_opening(piece) < 0:
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
        """Set `matched` if a stop string ends in text[num_held:], where new ones do; returns where it starts.

        Tries each place where one can start, or each stop string, whichever are fewer: a text may be held that is full of beginnings.
        """
        return self._search_places(text) if len(text) <= len(self._stops) else self._search_stops(text, num_held)

    def _search_places(self, text: str) -> int:
        stops = self._stops
        start = stops.next_opening(text)
        while start >= 0:
            self.matched = stops.longest_beginning(text[start:])
            if self.matched is not None:
                return start
            start = stops.next_opening(text, start + 1)
        return len(text)

    def _search_stops(self, text: str, num_held: int) -> int:
        first = len(text)
        for stop in self._stops.longest_first:
            start = text.find(stop, max(0, num_held - len(stop) + 1))
            if 0 <= start < first:
                first, self.matched = start, stop
        return first

    def _num_harmless(self, text: str) -> int:
        """Characters before the longest end that can become a stop string. Starts given up are not tried again: one try per character."""
        stops = self._stops
        start = stops.next_opening(text, max(0, len(text) - stops.max_length + 1))
        while start >= 0 and not stops.any_starts_with(text[start:]):
            start = stops.next_opening(text, start + 1)
        return start if start >= 0 else len(text)


@dataclass(frozen=True, slots=True)
class TextRules:
    """What of a sequence's text is shown, and what ends it."""

    stops: StopStrings | None = None
    include_stop: bool = False
    min_tokens: int = 0  # stop strings may begin with the text of this token, counted from 1, and not before
    end_texts: Mapping[int, str] = field(default_factory=dict)  # what is shown in place of end tokens and stop tokens


class SequenceTextStream:
    """A pure function of the tokens pushed, which all are generated. Used on one thread at a time."""

    __slots__ = ("_detokenizer", "_matcher", "_num_exempt", "_rules")

    def __init__(self, detokenizer: Detokenizer, rules: TextRules) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._matcher = StopMatcher(rules.stops, rules.include_stop) if rules.stops else None
        self._num_exempt = rules.min_tokens - 1

    @property
    def has_stops(self) -> bool:
        """Whether a stop string can end the text: then each token has to be pushed at once, and by itself."""
        return self._matcher is not None

    @property
    def matched_stop(self) -> str | None:
        """The stop string that has ended the text; from then on nothing may be pushed."""
        return self._matcher.matched if self._matcher else None

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that may be shown now."""
        end_text = self._rules.end_texts.get(token_id)
        if end_text is not None:
            return self.finish() + end_text
        text = self._detokenizer.push(token_id)
        if self._matcher is None:
            return text
        if self._num_exempt > 0:
            self._num_exempt -= 1
            return text
        return self._matcher.push(text)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Add many tokens of a text without stop strings; returns the text that may be shown now."""
        assert self._matcher is None, "stop strings are looked for token by token"
        if self._rules.end_texts.keys().isdisjoint(token_ids):
            return self._detokenizer.push_all(token_ids)
        return "".join([self.push(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """Return the text held back: nothing follows."""
        if self._matcher is None:
            return self._detokenizer.finish()
        if self._matcher.matched is not None:
            return ""
        return self._matcher.finish() + self._detokenizer.finish()
