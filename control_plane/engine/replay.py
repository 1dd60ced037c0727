"""Resumed tokens go through text, stops and constraint again before the engine takes their request: that may take long."""

from dataclasses import replace

from control_plane.core.constraint import ConstraintViolated
from control_plane.engine.ports import ChoiceSpec, Ending, GenerationRequest
from control_plane.engine.request import push_token


class Replay:
    """Replays a request a slice at a time. Used on one thread at a time, which need not be the engine's."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._replayed: list[ChoiceSpec] = []
        self._num_pushed = 0  # tokens of the choice under way
        self.num_pushed_tokens = 0  # of all choices

    @property
    def is_done(self) -> bool:
        """Whether every choice is where its tokens end."""
        return len(self._replayed) == len(self._request.choices)

    @property
    def request(self) -> GenerationRequest:
        """The request as the engine takes it."""
        assert self.is_done, "tokens are left to replay"
        return replace(self._request, choices=self._replayed)

    def advance(self, max_tokens: int) -> None:
        """Push at most so many tokens more; raises ConstraintViolated, naming choice and token."""
        end = self.num_pushed_tokens + max_tokens
        while not self.is_done and self.num_pushed_tokens < end:
            self._advance_choice(end - self.num_pushed_tokens)

    def _advance_choice(self, max_tokens: int) -> None:
        choice = self._request.choices[len(self._replayed)]
        token_ids = choice.resumed_token_ids
        ending = None
        for token_id in token_ids[self._num_pushed : self._num_pushed + max_tokens]:
            self._num_pushed += 1
            self.num_pushed_tokens += 1
            ending = self._push(choice, token_id)
            if ending:
                break
        if ending or self._num_pushed == len(token_ids):
            known = list(token_ids[: self._num_pushed])
            self._replayed.append(replace(choice, resumed_token_ids=known, resumed_ending=ending))
            self._num_pushed = 0

    def _push(self, choice: ChoiceSpec, token_id: int) -> Ending | None:
        if choice.constraint is not None:
            try:
                choice.constraint.push(token_id)
            except ConstraintViolated as error:
                raise ConstraintViolated(f"choice {choice.index}: resumed tokens do not fit the constraint: {error}") from error
        return push_token(self._request, choice.text, token_id, self._num_pushed)[1]
