"""Results of steps, read out of the frames of a worker and checked as a whole."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from control_plane.core.step import LaneError, PromptLogprobChunk, StepResult, TokenLogprob, WorkerDescription
from control_plane.edge.worker_link.frames.frame_error import FrameError
from pypto_serving.wire.columns import Ids, unpack_floats, unpack_ids
from pypto_serving.wire.contract import MAX_ALTERNATIVES
from pypto_serving.worker.v1 import worker_pb2

#: Characters of a complaint that are kept.
_MAX_COMPLAINT = 1000


@dataclass(frozen=True, slots=True)
class SampledColumns:
    """What a step sampled: one entry per lane that did. Lanes are below the worker's number of lanes and differ from each other."""

    lanes: Ids
    generations: Ids
    token_ids: Ids


def sampled_columns(message: worker_pb2.StepResult, limits: WorkerDescription) -> SampledColumns:
    """Unpack the columns of a result; raises FrameError when they do not fit each other or the worker's limits."""
    try:
        lanes = unpack_ids(message.lanes, "lanes")
        generations = unpack_ids(message.generations, "generations")
        token_ids = unpack_ids(message.token_ids, "token_ids")
    except ValueError as error:
        raise FrameError(str(error)) from error
    if not len(lanes) == len(generations) == len(token_ids):
        raise FrameError(f"lanes, generations and token_ids have {len(lanes)}, {len(generations)} and {len(token_ids)} entries")
    if len(lanes):
        _require_at_most("lanes", len(lanes), limits.max_lanes)
        _require_below("lanes", lanes, limits.max_lanes)
        _require_below("token_ids", token_ids, limits.vocab_size)
        if len(set(lanes.tolist())) != len(lanes):
            raise FrameError("lanes: a lane occurs twice")
    return SampledColumns(lanes, generations, token_ids)


def step_result(
    message: worker_pb2.StepResult, sampled: SampledColumns, prompts: Mapping[int, Sequence[int]], limits: WorkerDescription
) -> StepResult:
    """Build the engine's view of a result. `prompts` holds the tokens of every lane that reports its prompt; raises FrameError."""
    lanes, token_ids = sampled.lanes.tolist(), sampled.token_ids.tolist()
    _require_at_most("logprobs", len(message.logprobs), len(lanes))
    _require_at_most("prompt_logprobs", len(message.prompt_logprobs), len(prompts))
    _require_at_most("lane_errors", len(message.lane_errors), limits.max_lanes)
    return StepResult(
        step_id=message.step_id,
        lanes=lanes,
        generations=sampled.generations.tolist(),
        token_ids=token_ids,
        logprobs=_logprobs(message, dict(zip(lanes, token_ids, strict=True)), limits.vocab_size) if message.logprobs else None,
        prompt_logprobs=[_prompt_chunk(chunk, prompts, limits.vocab_size) for chunk in message.prompt_logprobs],
        lane_errors=[_lane_error(error) for error in message.lane_errors],
        error=message.error[:_MAX_COMPLAINT],
        device_seconds=message.device_us / 1e6,
        idle_seconds=message.idle_us / 1e6,
    )


def _lane_error(error: worker_pb2.LaneError) -> LaneError:
    return LaneError(error.lane, error.generation, error.message[:_MAX_COMPLAINT], error.nothing_to_draw)


def _require_below(field: str, column: Ids, limit: int) -> None:
    highest = int(column.max())
    if highest >= limit:
        raise FrameError(f"{field}: {highest} is not below {limit}")


def _require_at_most(field: str, count: int, limit: int) -> None:
    if count > limit:
        raise FrameError(f"{field}: {count} entries, limit {limit}")


def _logprobs(message: worker_pb2.StepResult, tokens: dict[int, int], vocab_size: int) -> dict[int, TokenLogprob]:
    logprobs = {}
    for entry in message.logprobs:
        if entry.lane not in tokens:
            raise FrameError(f"logprobs: lane {entry.lane} did not sample")
        if not math.isfinite(entry.sampled):
            raise FrameError(f"logprobs: {entry.sampled} of lane {entry.lane} is not finite")
        top = _alternatives(entry.top_token_ids, entry.top_logprobs, MAX_ALTERNATIVES, vocab_size)
        logprobs[entry.lane] = TokenLogprob(tokens[entry.lane], entry.sampled, top)
    return logprobs


def _prompt_chunk(chunk: worker_pb2.PromptTokenLogprobs, prompts: Mapping[int, Sequence[int]], vocab_size: int) -> PromptLogprobChunk:
    values = _floats(chunk.logprobs, "prompt_logprobs.logprobs")
    tokens = prompts.get(chunk.lane, ())[chunk.first_index : chunk.first_index + len(values)]
    if chunk.first_index < 1 or not values or len(tokens) != len(values):
        raise FrameError(f"prompt_logprobs: lane {chunk.lane} has no {len(values)} prompt tokens from {chunk.first_index} on")
    top = _alternatives(chunk.top_token_ids, chunk.top_logprobs, MAX_ALTERNATIVES * len(values), vocab_size)
    per_token, rest = divmod(len(top), len(values))
    if rest:
        raise FrameError(f"prompt_logprobs: {len(top)} alternatives do not spread over {len(values)} tokens")
    entries = (
        TokenLogprob(token_id, value, top[row * per_token : (row + 1) * per_token])
        for row, (token_id, value) in enumerate(zip(tokens, values, strict=True))
    )
    return PromptLogprobChunk(chunk.lane, chunk.generation, chunk.first_index, tuple(entries))


def _alternatives(token_ids: bytes, logprobs: bytes, most: int, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(token_ids) != len(logprobs) or len(token_ids) % 4:
        raise FrameError(f"alternatives: {len(token_ids)} bytes of tokens and {len(logprobs)} bytes of logprobs")
    ids = unpack_ids(token_ids, "top_token_ids")
    _require_at_most("top_token_ids", len(ids), most)
    if len(ids):
        _require_below("top_token_ids", ids, vocab_size)
    return tuple(zip(ids.tolist(), _floats(logprobs, "top_logprobs"), strict=True))


def _floats(column: bytes, field: str) -> list[float]:
    try:
        values = unpack_floats(column, field)
    except ValueError as error:
        raise FrameError(str(error)) from error
    if not np.isfinite(values).all():
        raise FrameError(f"{field}: {values[~np.isfinite(values)][0]} is not finite")
    numbers: list[float] = values.tolist()
    return numbers
