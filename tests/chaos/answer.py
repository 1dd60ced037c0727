"""What a client was given in the end."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from clients import AsyncClient, ServingError
from clients.results import Delta, Finished, PromptLogprobs, TokenLogprob


@dataclass
class Answer:
    """The answer to one request, put together from its events; equal answers agree in every token, character and bit."""

    token_ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by choice
    text: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    endings: dict[int, tuple[object, ...]] = field(default_factory=dict)
    broken_rules: list[str] = field(default_factory=list)

    @classmethod
    async def to(cls, client: AsyncClient, request: dict[str, Any]) -> "Answer":
        """Ask and listen to the end."""
        answer = cls()
        try:
            async for event in client.stream(**request):
                answer.take(event)
        except ServingError as error:
            answer.broken_rules.append(f"failed: {error}")
        return answer

    def take(self, event: object) -> None:
        """Add an event."""
        match event:
            case Delta():
                self._take_delta(event)
            case PromptLogprobs():
                self.prompt_logprobs.append(event)
            case Finished():
                if event.choice in self.endings:
                    self.broken_rules.append(f"choice {event.choice} ends twice")
                self.endings[event.choice] = (event.reason, event.matched, event.usage.prompt_tokens, event.usage.completion_tokens)

    def _take_delta(self, delta: Delta) -> None:
        expected = len(self.token_ids[delta.choice])
        if delta.first_index != expected or delta.choice in self.endings:
            self.broken_rules.append(f"choice {delta.choice}: token {delta.first_index} comes where {expected} is due")
        self.token_ids[delta.choice] += delta.token_ids
        self.text[delta.choice] += delta.text
        self.logprobs[delta.choice] += delta.logprobs

    def difference(self, other: "Answer") -> str:
        """Where this answer departs from another; empty when they are equal."""
        if self.broken_rules or other.broken_rules:
            return f"{'; '.join(self.broken_rules) or 'well'}, undisturbed {'; '.join(other.broken_rules) or 'well'}"
        for name in ("token_ids", "text", "logprobs"):
            for choice, expected in getattr(other, name).items():
                found = getattr(self, name)[choice]
                if found != expected:
                    return f"choice {choice}: {_first_difference(name, found, expected)}"
        return "" if self == other else f"prompt logprobs or endings: {self.endings}, undisturbed {other.endings}"


def _first_difference(name: str, found: Any, expected: Any) -> str:
    index = next((i for i, (one, two) in enumerate(zip(found, expected, strict=False)) if one != two), min(len(found), len(expected)))
    where = slice(max(0, index - 2), index + 3)
    return f"{name} differ from {index} on, {len(found)} against {len(expected)}: {found[where]!r}, undisturbed {expected[where]!r}"
