"""Stop strings: found across tokens, and never shown in part."""

from collections import deque
from collections.abc import Sequence


class StopAutomaton:
    """Aho-Corasick automaton over stop strings. Immutable; shared by all sequences of a request.

    A state is the longest suffix of the text so far that is a prefix of some stop string, so its depth is the number of characters that
    can not be shown yet. Aho, Corasick: Efficient string matching, CACM 1975.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everything"
        self.stops = tuple(stops)
        self.depths = [0]
        self._edges: list[dict[str, int]] = [{}]
        self._fallbacks = [0]
        self.matches: list[str | None] = [None]  # longest stop string that ends in the state
        for stop in stops:
            self._add(stop)
        self._link()

    def next_state(self, state: int, character: str) -> int:
        """The state after one more character."""
        while character not in self._edges[state]:
            if state == 0:
                return 0
            state = self._fallbacks[state]
        return self._edges[state][character]

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._edges[state]:
                self._edges[state][character] = len(self._edges)
                self._edges.append({})
                self._fallbacks.append(0)
                self.matches.append(None)
                self.depths.append(self.depths[state] + 1)
            state = self._edges[state][character]
        self.matches[state] = stop

    def _link(self) -> None:
        """Breadth first: the fallback of a state is shorter than the state, and has its own matches already."""
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._edges[state].items():
                self._fallbacks[child] = self.next_state(self._fallbacks[state], character)
                self.matches[child] = self.matches[child] or self.matches[self._fallbacks[child]]
                queue.append(child)


class StopMatcher:
    """Looks for stop strings in the text of one sequence and holds back what could still become one.

    The text ends with the first piece after which it contains a stop string; of several, the one that starts first, of these the longest.
    """

    def __init__(self, automaton: StopAutomaton, include_stop: bool) -> None:
        self._automaton = automaton
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Take more text; returns what may be shown. After a match nothing may be pushed."""
        assert self.matched is None, "text after a stop string"
        text = self._held + piece
        best = self._search(text, len(self._held))
        if best is None:
            shown = len(text) - self._automaton.depths[self._state]
            self._held = text[shown:]
            return text[:shown]
        start, self.matched = best
        self._held = ""
        return text[: start + len(self.matched)] if self._include_stop else text[:start]

    def finish(self) -> str:
        """Return the text held back: nothing follows that could make it a stop string."""
        text, self._held = self._held, ""
        return text

    def _search(self, text: str, begin: int) -> tuple[int, str] | None:
        """Advance over text[begin:]; the match to stop at, as (start, stop string)."""
        best: tuple[int, str] | None = None
        state, automaton = self._state, self._automaton
        for end, character in enumerate(text[begin:], begin + 1):
            state = automaton.next_state(state, character)
            match = automaton.matches[state]
            if match is not None and (best is None or (end - len(match), -len(match)) < (best[0], -len(best[1]))):
                best = (end - len(match), match)
        self._state = state
        return best
