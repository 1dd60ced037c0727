"""Resumed tokens go through text, stops and constraint again before the engine takes their request: that may take long."""

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.core.constraint import Constraint, ConstraintViolated
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.engine.ports import FinishReason, GenerationRequest


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a choice ended: with STOP at an end token, or at a stop string, which the text knows."""

    reason: FinishReason
    end_token_id: int | None = None


@dataclass(slots=True)
class ResumedChoice:
    """A choice with the tokens that its client has. It may turn out that they contain its ending, and some that come after that."""

    output: ChoiceOutput
    token_ids: Sequence[int] = ()
    numerics_id: str | None = None  # under which they were made
    constraint: Constraint | None = None
    ending: Ending | None = None


class Replay:
    """Replays choices of a request a slice at a time. Used on one thread at a time."""

    def __init__(self, request: GenerationRequest, choices: Sequence[ResumedChoice]) -> None:
        """`request`: its rules, to which the choices belong; those that are still to be generated it gets later."""
        self._request = request
        self._choices = choices
        self._num_replayed = 0  # choices
        self._num_pushed = 0  # tokens of the choice under way
        self.num_pushed_tokens = 0  # of all choices

    @property
    def is_done(self) -> bool:
        """Whether every choice is where its tokens end."""
        return self._num_replayed == len(self._choices)

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(len(choice.token_ids) for choice in self._choices)

    def advance(self, max_tokens: int) -> None:
        """Push at most so many tokens more; raises ConstraintViolated, naming choice and token."""
        end = self.num_pushed_tokens + max_tokens
        while not self.is_done and self.num_pushed_tokens < end:
            self._advance_choice(end - self.num_pushed_tokens)

    def _advance_choice(self, max_tokens: int) -> None:
        choice = self._choices[self._num_replayed]
        for token_id in choice.token_ids[self._num_pushed : self._num_pushed + max_tokens]:
            self._num_pushed += 1
            self.num_pushed_tokens += 1
            self._push(choice, token_id)
            if choice.ending:
                break
        if choice.ending or self._num_pushed == len(choice.token_ids):
            self._num_replayed += 1
            self._num_pushed = 0

    def _push(self, choice: ResumedChoice, token_id: int) -> None:
        if choice.constraint is not None:
            try:
                choice.constraint.push(token_id)
            except ConstraintViolated as error:
                raise ConstraintViolated(f"choice {choice.output.index}: resumed tokens do not fit the constraint: {error}") from error
        choice.output.replay(token_id)
        choice.ending = self._ending(choice.output, token_id)

    def _ending(self, output: ChoiceOutput, token_id: int) -> Ending | None:
        """The ending that a token brings. An end token comes before a stop string, and this before the length."""
        if token_id in self._request.end_token_ids and output.first_index > self._request.min_tokens:
            return Ending(FinishReason.STOP, token_id)
        if output.is_stopped:
            return Ending(FinishReason.STOP)
        return Ending(FinishReason.LENGTH) if output.first_index >= self._request.max_tokens else None
