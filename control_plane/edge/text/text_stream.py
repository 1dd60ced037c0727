"""The text of one sequence: detokenizer and stop strings behind the engine's `TextStream`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.edge.text.detokenizer import Detokenizer
from control_plane.edge.text.stop_matcher import StopMatcher, StopStrings


@dataclass(frozen=True, slots=True)
class TextRules:
    """What of a sequence's text is shown, and what ends it."""

    stops: StopStrings | None = None
    include_stop: bool = False
    min_tokens: int = 0  # stop strings may begin with the text of this token, counted from 1, and not before
    end_texts: Mapping[int, str] = field(default_factory=dict)  # what is shown in place of end tokens and stop tokens


class SequenceTextStream:
    """Implements `control_plane.engine.ports.TextStream`; a pure function of the tokens pushed. Used on one thread at a time."""

    __slots__ = ("_detokenizer", "_matcher", "_num_exempt", "_rules")

    def __init__(self, detokenizer: Detokenizer, rules: TextRules) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._matcher = StopMatcher(rules.stops, rules.include_stop) if rules.stops else None
        self._num_exempt = rules.min_tokens - 1

    @property
    def matched_stop(self) -> str | None:
        """See `TextStream.matched_stop`."""
        return self._matcher.matched if self._matcher else None

    def push(self, token_id: int) -> str:
        """See `TextStream.push`."""
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

    def finish(self) -> str:
        """See `TextStream.finish`."""
        if self._matcher is None:
            return self._detokenizer.finish()
        if self._matcher.matched is not None:
            return ""
        return self._matcher.finish() + self._detokenizer.finish()
