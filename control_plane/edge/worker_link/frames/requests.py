"""Frames for a worker."""

from collections.abc import Sequence

import numpy as np

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import LaneAdmission, Step
from pypto_serving.wire.columns import U32, pack_floats, pack_ids
from pypto_serving.wire.generations import generation_fields
from pypto_serving.worker.v1 import worker_pb2


def step_frame(step: Step, epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a step. Every id in it is below 2**32; page tables may hold NO_PAGE."""
    message = worker_pb2.Step(
        step_id=step.step_id,
        acked_step_id=step.acked_step_id,
        released_lanes=_column(step.released_lanes),
        admissions=[_admission(admission) for admission in step.admissions],
    )
    if step.growths:
        message.grown_lanes = pack_ids([growth.lane for growth in step.growths])
        message.grown_groups = pack_ids([growth.group for growth in step.growths])
        message.grown_pages = pack_ids([growth.page_id for growth in step.growths])
    if step.trims:
        message.trimmed_lanes = pack_ids([trim.lane for trim in step.trims])
        message.trimmed_groups = pack_ids([trim.group for trim in step.trims])
        message.trimmed_entries = pack_ids([trim.num_entries for trim in step.trims])
    if step.chunks:
        message.chunk_lanes = pack_ids([chunk.lane for chunk in step.chunks])
        message.chunk_tokens = pack_ids([chunk.num_tokens for chunk in step.chunks])
    if step.masks:
        message.masks.extend(worker_pb2.LaneMask(lane=mask.lane, allowed=mask.allowed) for mask in step.masks)
    return worker_pb2.ExecuteRequest(epoch=epoch, step=message)


def reset_frame(epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a Reset."""
    return worker_pb2.ExecuteRequest(epoch=epoch, reset=worker_pb2.Reset())


def heartbeat_frame(epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a Heartbeat."""
    return worker_pb2.ExecuteRequest(epoch=epoch, heartbeat=worker_pb2.Heartbeat())


def farewell_frame(epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a Farewell."""
    return worker_pb2.ExecuteRequest(epoch=epoch, farewell=worker_pb2.Farewell())


def _column(values: Sequence[int]) -> bytes:
    return pack_ids(values) if values else b""


def _admission(admission: LaneAdmission) -> worker_pb2.LaneAdmission:
    return worker_pb2.LaneAdmission(
        lane=admission.lane,
        **generation_fields(admission.generation),
        token_ids=pack_ids(admission.token_ids),
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        final_length=admission.final_length,
        page_tables=[worker_pb2.PageTable(page_ids=_page_column(table)) for table in admission.page_tables],
        partition=admission.partition,
        sampling=_sampling(admission.sampling),
        end_token_ids=_column(admission.end_token_ids),
        min_length=admission.min_length,
        constrained=admission.constrained,
    )


def _page_column(table: Sequence[int]) -> bytes:
    # NO_PAGE is -1 here and 0xffffffff on the wire: the same bits once the sign is dropped.
    return np.asarray(table, dtype=np.int64).astype(U32).tobytes()


def _sampling(sampling: SamplingParams) -> worker_pb2.LaneSampling:
    return worker_pb2.LaneSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        bias_token_ids=_column([token_id for token_id, _ in sampling.logit_bias]),
        bias_values=pack_floats([bias for _, bias in sampling.logit_bias]),
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
    )
