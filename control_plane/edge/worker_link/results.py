"""Results of steps, read out of the frames of a worker and checked as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_plane.core.step import LaneError, PromptLogprobChunk, StepResult, TokenLogprob
from control_plane.edge.worker_link.frames import FrameError
from pypto_serving.wire.columns import Ids, unpack_floats, unpack_ids
from pypto_serving.worker.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class SampledColumns:
    """What a step sampled: one entry per lane that did. Lanes are below the worker's number of lanes and differ from each other."""

    lanes: Ids
    generations: Ids
    token_ids: Ids


def sampled_columns(message: worker_pb2.StepResult, max_lanes: int, vocab_size: int) -> SampledColumns:
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
        _require_below("lanes", lanes, max_lanes)
        _require_below("token_ids", token_ids, vocab_size)
        if len(set(lanes.tolist())) != len(lanes):
            raise FrameError("lanes: a lane occurs twice")
    return SampledColumns(lanes, generations, token_ids)


def step_result(message: worker_pb2.StepResult, sampled: SampledColumns, prompts: Mapping[int, Sequence[int]]) -> StepResult:
    """Build the engine's view of a result. `prompts` holds the tokens of every lane that reports its prompt; raises FrameError."""
    lanes, token_ids = sampled.lanes.tolist(), sampled.token_ids.tolist()
    return StepResult(
        step_id=message.step_id,
        lanes=lanes,
        generations=sampled.generations.tolist(),
        token_ids=token_ids,
        logprobs=_logprobs(message, dict(zip(lanes, token_ids, strict=True))) if message.logprobs else None,
        prompt_logprobs=[_prompt_chunk(chunk, prompts) for chunk in message.prompt_logprobs],
        lane_errors=[LaneError(error.lane, error.generation, error.message, error.nothing_to_draw) for error in message.lane_errors],
        error=message.error,
        device_seconds=message.device_us / 1e6,
        idle_seconds=message.idle_us / 1e6,
    )


def _require_below(field: str, column: Ids, limit: int) -> None:
    highest = int(column.max())
    if highest >= limit:
        raise FrameError(f"{field}: {highest} is not below {limit}")


def _logprobs(message: worker_pb2.StepResult, tokens: dict[int, int]) -> dict[int, TokenLogprob]:
    logprobs = {}
    for entry in message.logprobs:
        if entry.lane not in tokens:
            raise FrameError(f"logprobs: lane {entry.lane} did not sample")
        logprobs[entry.lane] = TokenLogprob(tokens[entry.lane], entry.sampled, _alternatives(entry.top_token_ids, entry.top_logprobs))
    return logprobs


def _prompt_chunk(chunk: worker_pb2.PromptTokenLogprobs, prompts: Mapping[int, Sequence[int]]) -> PromptLogprobChunk:
    values = _floats(chunk.logprobs, "prompt_logprobs.logprobs")
    tokens = prompts.get(chunk.lane, ())[chunk.first_index : chunk.first_index + len(values)]
    if chunk.first_index < 1 or not values or len(tokens) != len(values):
        raise FrameError(f"prompt_logprobs: lane {chunk.lane} has no {len(values)} prompt tokens from {chunk.first_index} on")
    top = _alternatives(chunk.top_token_ids, chunk.top_logprobs)
    per_token, rest = divmod(len(top), len(values))
    if rest:
        raise FrameError(f"prompt_logprobs: {len(top)} alternatives do not spread over {len(values)} tokens")
    entries = (
        TokenLogprob(token_id, value, top[row * per_token : (row + 1) * per_token])
        for row, (token_id, value) in enumerate(zip(tokens, values, strict=True))
    )
    return PromptLogprobChunk(chunk.lane, chunk.generation, chunk.first_index, tuple(entries))


def _alternatives(token_ids: bytes, logprobs: bytes) -> tuple[tuple[int, float], ...]:
    if len(token_ids) != len(logprobs) or len(token_ids) % 4:
        raise FrameError(f"alternatives: {len(token_ids)} bytes of tokens and {len(logprobs)} bytes of logprobs")
    return tuple(zip(unpack_ids(token_ids, "top_token_ids").tolist(), _floats(logprobs, "top_logprobs"), strict=True))


def _floats(column: bytes, field: str) -> list[float]:
    try:
        values: list[float] = unpack_floats(column, field).tolist()
    except ValueError as error:
        raise FrameError(str(error)) from error
    return values
