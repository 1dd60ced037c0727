"""The calls of a front end: they keep what its requests brought, and hold the link to its promises."""

import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import TokenLogprob
from control_plane.engine.ports import ChoiceSpec, GenerationRequest, Outputs, RequestFailed, SequenceFinished

_numbers = itertools.count(1)


def make_request(request_id: str = "r", num_choices: int = 1, **fields: Any) -> GenerationRequest:
    """A request with defaults; `sampling` is that of all its choices."""
    sampling = fields.pop("sampling", SamplingParams())
    defaults: dict[str, Any] = {
        "resume_key": b"key",
        "prompt_token_ids": [1, 2, 3],
        "choices": [ChoiceSpec(index, next(_numbers), sampling) for index in range(num_choices)],
        "max_tokens": 4,
        "min_tokens": 0,
        "end_token_ids": frozenset(),
        "arrival_time": time.monotonic(),
    }
    return GenerationRequest(request_id, **{**defaults, **fields})


@dataclass
class Call:
    """What one request brought."""

    request: GenerationRequest
    num_accepted: int = 0
    prompt_logprobs: list[list[TokenLogprob]] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)  # by number
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    numerics: dict[int, list[str]] = field(default_factory=dict)
    finished: dict[int, SequenceFinished] = field(default_factory=dict)
    failed: RequestFailed | None = None

    @property
    def has_ended(self) -> bool:
        return self.failed is not None or (self.num_accepted > 0 and len(self.finished) == len(self.request.choices))


class FrontEndCalls:
    """Takes outputs in; asserts that they come in order, and that nothing follows an end."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}  # the latest with each id
        self._owners: dict[int, Call] = {}

    def add(self, request: GenerationRequest) -> Call:
        """Note a request that is submitted."""
        call = self.calls[request.request_id] = Call(request)
        for choice in request.choices:
            self._owners[choice.number] = call
            call.tokens[choice.number] = list(choice.resumed_token_ids)
            call.logprobs[choice.number], call.numerics[choice.number] = [], []
        return call

    def deliver(self, outputs: Outputs) -> None:
        """Implements the link's `deliver`."""
        for request_id in outputs.accepted:
            self._live(request_id).num_accepted += 1
        for prompt in outputs.prompt_logprobs:
            self._live(prompt.request_id).prompt_logprobs.append(list(prompt.entries))
        for number, numerics_id in outputs.numerics:
            self._live_choice(number).numerics[number].append(numerics_id)
        for number, token_id in zip(outputs.numbers, outputs.token_ids, strict=True):
            self._live_choice(number).tokens[number].append(token_id)
        for place, entry in outputs.logprobs:
            self._owners[outputs.numbers[place]].logprobs[outputs.numbers[place]].append(entry)
        for finished in outputs.finished:
            self._live_choice(finished.number).finished[finished.number] = finished
        for failed in outputs.failed:
            self._live(failed.request_id).failed = failed

    def _live(self, request_id: str) -> Call:
        call = self.calls[request_id]
        assert not call.has_ended, f"{request_id} has ended"
        return call

    def _live_choice(self, number: int) -> Call:
        call = self._owners[number]
        assert call.num_accepted == 1, f"{call.request.request_id} was accepted {call.num_accepted} times"
        assert call.failed is None and number not in call.finished, f"choice {number} of {call.request.request_id} has ended"
        return call
