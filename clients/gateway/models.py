"""What the gateway knows of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.parsers.calls import CallFormat
from clients.gateway.parsers.reasoning import CLOSE, OPEN, ReasoningParser
from clients.gateway.translation.constraint import Thoughts

#: So near to the end of a prompt a template writes what opens or closes thoughts.
_TAIL_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """How a model writes.

    `marker_ids`: markers that are tokens of it; `end_texts`: names of its end tokens; `reasons`: whether thoughts are looked for.
    """

    call_format: CallFormat
    marker_ids: Mapping[str, int]
    end_texts: tuple[str, ...]
    reasons: bool

    def thoughts_after(self, prompt_ids: Sequence[int]) -> Thoughts:
        """Whether an answer to the prompt begins with thoughts."""
        if not self.reasons or OPEN not in self.marker_ids:
            return Thoughts.NONE
        for token_id in reversed(prompt_ids[-_TAIL_TOKENS:]):
            if token_id == self.marker_ids[OPEN]:
                return Thoughts.OPEN
            if token_id == self.marker_ids.get(CLOSE):
                return Thoughts.NONE
        return Thoughts.POSSIBLE

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[str], is_parallel: bool) -> AnswerParser | None:
        """The parser of a choice; None where all of its text is content."""
        thoughts = self.thoughts_after(prompt_ids)
        if thoughts is Thoughts.NONE and not tools:
            return None
        reasoning = None if thoughts is Thoughts.NONE else ReasoningParser(thoughts is Thoughts.OPEN)
        calls = self.call_format.parser(frozenset(tools)) if tools else None
        hidden = self.end_texts if tools and self.call_format.shows_special_tokens else ()
        return AnswerParser(reasoning, calls, hidden, is_parallel)
