"""Results: worker.step inside, protobuf on the wire."""

from pypto_serving.wire.columns import generation_fields, pack_floats, pack_generations, pack_ids
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.step import PromptTokenLogprobs, StepResult

_MAX_UINT32 = 0xFFFFFFFF


def encode_result(result: StepResult, device_us: int, idle_us: int) -> pb.StepResult:
    """The answer to a step that was executed."""
    generations, generations_high = pack_generations(result.generations)
    return pb.StepResult(
        step_id=result.step_id,
        lanes=pack_ids(result.lanes),
        generations=generations,
        generations_high=generations_high,
        token_ids=pack_ids(result.token_ids),
        logprobs=[
            pb.TokenLogprobs(
                lane=entry.lane,
                sampled=entry.sampled,
                top_token_ids=pack_ids(entry.top_token_ids),
                top_logprobs=pack_floats(entry.top_logprobs),
            )
            for entry in result.logprobs
        ],
        prompt_logprobs=[_encode_prompt_logprobs(entry) for entry in result.prompt_logprobs],
        lane_errors=[
            pb.LaneError(
                lane=error.lane, **generation_fields(error.generation), message=error.message, nothing_to_draw=error.nothing_to_draw
            )
            for error in result.lane_errors
        ],
        digest=result.digest,
        device_us=min(device_us, _MAX_UINT32),
        idle_us=min(idle_us, _MAX_UINT32),
    )


def encode_failure(step_id: int, error: str, device_us: int, idle_us: int) -> pb.StepResult:
    """The answer to a step that failed as a whole, or that was not executed because an earlier one failed."""
    return pb.StepResult(step_id=step_id, error=error, device_us=min(device_us, _MAX_UINT32), idle_us=min(idle_us, _MAX_UINT32))


def _encode_prompt_logprobs(entry: PromptTokenLogprobs) -> pb.PromptTokenLogprobs:
    return pb.PromptTokenLogprobs(
        lane=entry.lane,
        **generation_fields(entry.generation),
        first_index=entry.first_index,
        logprobs=pack_floats(entry.logprobs),
        top_token_ids=pack_ids(entry.top_token_ids),
        top_logprobs=pack_floats(entry.top_logprobs),
    )
