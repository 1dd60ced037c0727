"""Results of steps, read out of the frames of a worker and checked as a whole."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from control_plane.core.step import (
    LaneAdmission,
    LaneError,
    PackedLogprobs,
    PromptLogprobChunk,
    Step,
    StepResult,
    TokenLogprob,
    WorkerDescription,
)
from pypto_serving.wire.checks import FrameError, check_distinct, check_equal_lengths, check_range
from pypto_serving.wire.columns import (
    U32,
    Floats,
    Generations,
    Ids,
    Places,
    generation_of,
    unpack_finite,
    unpack_generations,
    unpack_ids,
    unpack_ids_below,
)
from pypto_serving.worker.v1 import worker_pb2

#: Characters of a complaint that are kept.
_MAX_COMPLAINT = 1000


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens that a step reports."""

    generation: int
    first_index: int
    token_ids: Sequence[int]
    num_alternatives: int  # per token


@dataclass(slots=True)
class _Prompt:
    """A prompt that is not reported in full."""

    generation: int
    token_ids: Sequence[int]
    num_known_tokens: int  # of the lane: prompt and generated ones
    num_computed_tokens: int
    num_alternatives: int

    def run(self, num_tokens: int) -> PromptSpan:
        """Compute `num_tokens` more: the logits at index i score token i + 1."""
        first = self.num_computed_tokens + 1
        self.num_computed_tokens += num_tokens
        return PromptSpan(self.generation, first, self.token_ids[first : first + num_tokens], self.num_alternatives)


class DueLogprobs:
    """Which log probabilities a worker has to send with a result: those that were asked for, no more and no fewer."""

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
        """Prompt tokens that the last step reports, by lane."""
        return self._spans

    @property
    def excused_lanes(self) -> Set[int]:
        """Lanes that failed in the last step: they may report nothing."""
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

    def admit(self, admission: LaneAdmission) -> None:
        """Follow a lane from now on."""
        sampling = admission.sampling
        if sampling.logprobs:
            self._sampled[admission.lane] = sampling.top_logprobs
        if sampling.prompt_logprobs is not None:
            self._prompts[admission.lane] = _Prompt(
                generation=admission.generation,
                token_ids=list(admission.token_ids[: admission.num_prompt_tokens]),
                num_known_tokens=len(admission.token_ids),
                num_computed_tokens=admission.num_computed_tokens,
                num_alternatives=sampling.prompt_logprobs,
            )

    def run(self, step: Step, failed: set[int]) -> None:
        """Find out which lanes run in a step, and what they report; those that `failed` in it run no more."""
        self._spans, self._failed = {}, failed
        if not self._prompts:
            return
        chunks = dict(zip(step.chunk_lanes, step.chunk_tokens, strict=True))
        for lane, prompt in tuple(self._prompts.items()):
            is_last = prompt.num_known_tokens - prompt.num_computed_tokens == 1
            span = prompt.run(chunks.get(lane, int(is_last)))
            if span.token_ids:
                self._spans[lane] = span
            if prompt.num_computed_tokens + 1 >= len(prompt.token_ids) or lane in failed:
                del self._prompts[lane]


@dataclass(frozen=True, slots=True)
class SampledLanes:
    """The lanes that a step sampled of, as columns. They are below the worker's number of lanes and differ from each other."""

    lanes: Ids
    places: Places  # the same
    generations: Generations
    numbers: Sequence[int]  # the lanes again


def sampled_lanes(message: worker_pb2.StepResult, limits: WorkerDescription) -> SampledLanes:
    """Unpack the columns of a result that say of which lanes it is; raises FrameError when they do not fit each other or the limits."""
    check_range("lanes (number)", len(message.lanes) // U32.itemsize, 0, limits.max_lanes)
    lanes = unpack_ids_below(message.lanes, "lanes", limits.max_lanes)
    generations = unpack_generations(message.generations, message.generations_high)
    check_equal_lengths({"lanes": lanes, "generations": generations, "token_ids": unpack_ids(message.token_ids, "token_ids")})
    check_distinct("lanes", lanes)
    return SampledLanes(lanes, lanes.astype(np.intp), generations, lanes.tolist())


def sampled_tokens(message: worker_pb2.StepResult, sampled: SampledLanes, limits: WorkerDescription) -> Ids:
    """Unpack the tokens, one of each lane; raises FrameError."""
    token_ids = unpack_ids_below(message.token_ids, "token_ids", limits.vocab_size)
    if len(token_ids) != len(sampled.lanes):
        check_equal_lengths({"lanes": sampled.lanes, "generations": sampled.generations, "token_ids": token_ids})
    return token_ids


def step_result(
    message: worker_pb2.StepResult, sampled: SampledLanes, token_ids: Ids, due: DueLogprobs, limits: WorkerDescription
) -> StepResult:
    """Build the engine's view of the result of a step that ran; raises FrameError, also where log probabilities of `due` are missing."""
    check_range("lane_errors (number)", len(message.lane_errors), 0, limits.max_lanes)
    tokens = dict(zip(sampled.numbers, token_ids.tolist(), strict=True))
    logprobs = _logprobs(message, tokens, due.num_alternatives, limits.vocab_size)
    if due.prompt_spans or message.prompt_logprobs:
        _require_lanes("prompt_logprobs", (chunk.lane for chunk in message.prompt_logprobs), due.prompt_spans.keys(), due.excused_lanes)
    return StepResult(
        step_id=message.step_id,
        tokens=tokens,
        logprobs=logprobs,
        prompt_logprobs=[_prompt_chunk(chunk, due.prompt_spans[chunk.lane], limits.vocab_size) for chunk in message.prompt_logprobs],
        lane_errors=[
            LaneError(error.lane, generation_of(error), error.message[:_MAX_COMPLAINT], error.nothing_to_draw)
            for error in message.lane_errors
        ],
        device_seconds=message.device_us / 1e6,
        idle_seconds=message.idle_us / 1e6,
    )


def failed_result(message: worker_pb2.StepResult) -> StepResult:
    """Build the engine's view of the result of a step that failed as a whole."""
    return StepResult(message.step_id, error=message.error[:_MAX_COMPLAINT])


def _require_lanes(field: str, lanes: Iterable[int], due: Set[int], excused: Set[int] = frozenset()) -> None:
    """Every lane that is due has to be there, once, unless it is excused; no other may be."""
    open_lanes = set(due)
    for lane in lanes:
        if lane not in open_lanes:
            raise FrameError(f"{field}: nothing is due of lane {lane}")
        open_lanes.remove(lane)
    if missing := open_lanes - excused:
        raise FrameError(f"{field}: missing for lane {min(missing)}")


def _logprobs(
    message: worker_pb2.StepResult, tokens: Mapping[int, int], num_alternatives: Mapping[int, int], vocab_size: int
) -> dict[int, TokenLogprob]:
    if not (num_alternatives or message.logprobs):
        return {}
    _require_lanes("logprobs", (entry.lane for entry in message.logprobs), tokens.keys() & num_alternatives.keys())
    logprobs = {}
    for entry in message.logprobs:
        if not math.isfinite(entry.sampled):
            raise FrameError(f"logprobs: {entry.sampled} of lane {entry.lane} is not finite")
        ids, values = _alternatives(entry, num_alternatives[entry.lane], vocab_size)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        logprobs[entry.lane] = TokenLogprob(tokens[entry.lane], entry.sampled, top)
    return logprobs


def _prompt_chunk(chunk: worker_pb2.PromptTokenLogprobs, due: PromptSpan, vocab_size: int) -> PromptLogprobChunk:
    values = unpack_finite(chunk.logprobs, "prompt_logprobs.logprobs")
    wanted = (due.generation, due.first_index, len(due.token_ids))
    generation = generation_of(chunk)
    if (generation, chunk.first_index, len(values)) != wanted:
        reported = f"{len(values)} tokens from {chunk.first_index} on of generation {generation}"
        raise FrameError(f"prompt_logprobs: lane {chunk.lane} reports {reported}, due are {wanted[2]} from {wanted[1]} on of {wanted[0]}")
    count = due.num_alternatives
    ids, top = _alternatives(chunk, count * len(values), vocab_size)
    entries = PackedLogprobs(due.token_ids, values.data, count, ids.data, top.data)
    return PromptLogprobChunk(chunk.lane, generation, chunk.first_index, entries)


def _alternatives(entry: worker_pb2.TokenLogprobs | worker_pb2.PromptTokenLogprobs, count: int, vocab_size: int) -> tuple[Ids, Floats]:
    if not len(entry.top_token_ids) == len(entry.top_logprobs) == 4 * count:
        raise FrameError(f"alternatives: {len(entry.top_token_ids)} and {len(entry.top_logprobs)} bytes, {4 * count} each are due")
    return unpack_ids_below(entry.top_token_ids, "top_token_ids", vocab_size), unpack_finite(entry.top_logprobs, "top_logprobs")
