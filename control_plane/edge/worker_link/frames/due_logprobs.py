"""Which log probabilities a worker has to send with a result: those that were asked for, no more and no fewer."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from pypto_serving.wire.columns import Ids, unpack_ids
from pypto_serving.wire.generations import generation_of
from pypto_serving.worker.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens that a step tells about."""

    generation: int
    first_index: int
    token_ids: Sequence[int]
    num_alternatives: int  # per token


@dataclass(slots=True)
class _Prompt:
    """A prompt that is not told in full."""

    generation: int
    token_ids: Sequence[int]
    num_known_tokens: int  # of the lane: prompt and generated ones
    num_computed_tokens: int
    num_alternatives: int

    def run(self, num_tokens: int) -> PromptSpan:
        """Compute `num_tokens` more: the logits at index i tell about token i + 1."""
        first = self.num_computed_tokens + 1
        self.num_computed_tokens += num_tokens
        return PromptSpan(self.generation, first, self.token_ids[first : first + num_tokens], self.num_alternatives)


class DueLogprobs:
    """Follows the lanes that asked for log probabilities."""

    def __init__(self) -> None:
        self._sampled: dict[int, int] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._spans: dict[int, PromptSpan] = {}
        self._failed: set[int] = set()

    @property
    def num_alternatives(self) -> Mapping[int, int]:
        """How many alternatives come with each sampled token, by lane that wants log probabilities."""
        return self._sampled

    @property
    def prompt_spans(self) -> Mapping[int, PromptSpan]:
        """What the last step tells about prompts, by lane."""
        return self._spans

    @property
    def excused_lanes(self) -> Set[int]:
        """Lanes that failed in the last step: they may tell nothing."""
        return self._failed

    def clear(self) -> None:
        """Forget every lane."""
        self._sampled.clear()
        self._prompts.clear()
        self._spans.clear()

    def release(self, lanes: Iterable[int]) -> None:
        """Forget some lanes."""
        for lane in lanes:
            self._sampled.pop(lane, None)
            self._prompts.pop(lane, None)

    def admit(self, admission: worker_pb2.LaneAdmission, token_ids: Ids) -> None:
        """Take a lane in, which knows `token_ids`."""
        sampling = admission.sampling
        if sampling.logprobs:
            self._sampled[admission.lane] = sampling.top_logprobs
        if sampling.HasField("prompt_logprobs"):
            self._prompts[admission.lane] = _Prompt(
                generation=generation_of(admission),
                token_ids=token_ids[: admission.num_prompt_tokens].tolist(),
                num_known_tokens=len(token_ids),
                num_computed_tokens=admission.num_computed_tokens,
                num_alternatives=sampling.prompt_logprobs,
            )

    def run(self, step: worker_pb2.Step, failed: set[int]) -> None:
        """Find out which lanes run in a step, and what they tell; those that `failed` in it run no more."""
        self._spans, self._failed = {}, failed
        if not self._prompts:
            return
        chunks = _chunks(step, np.fromiter(self._prompts, dtype=np.uint32))
        for lane, prompt in tuple(self._prompts.items()):
            is_last = prompt.num_known_tokens - prompt.num_computed_tokens == 1
            span = prompt.run(chunks.get(lane, int(is_last)))
            if span.token_ids:
                self._spans[lane] = span
            if prompt.num_computed_tokens + 1 >= len(prompt.token_ids) or lane in failed:
                del self._prompts[lane]


def _chunks(step: worker_pb2.Step, lanes: Ids) -> dict[int, int]:
    """Tokens that those of `lanes` run which do not run exactly one by default."""
    chunk_lanes, chunk_tokens = unpack_ids(step.chunk_lanes, "chunk_lanes"), unpack_ids(step.chunk_tokens, "chunk_tokens")
    wanted = np.isin(chunk_lanes, lanes)
    return dict(zip(chunk_lanes[wanted].tolist(), chunk_tokens[wanted].tolist(), strict=True))
