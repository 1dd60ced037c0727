"""Frames for a worker."""

from dataclasses import fields
from typing import Any

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import LaneAdmission, Step
from pypto_serving.log.v1 import log_pb2
from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.wire.columns import generation_fields, pack_floats, pack_ids
from pypto_serving.worker.v1 import worker_pb2

#: Columns of a step, which have the same names in the core and on the wire.
_COLUMNS = (
    *("released_lanes", "trimmed_lanes", "trimmed_groups", "trimmed_entries"),
    *("grown_lanes", "grown_groups", "grown_pages", "chunk_lanes", "chunk_tokens"),
)

#: Sampling parameters, but those that cross the wire in another form.
_SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name != "logit_bias")


def step_frame(step: Step, epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a step. Every id in it is below 2**32."""
    message = worker_pb2.Step(
        step_id=step.step_id,
        acked_step_id=step.acked_step_id,
        admissions=[_admission(admission) for admission in step.admissions],
        masks=[worker_pb2.LaneMask(lane=lane, allowed=allowed) for lane, allowed in step.masks.items()],
    )
    for field in _COLUMNS:
        column = getattr(step, field)
        if column:
            setattr(message, field, pack_ids(column))
    return worker_pb2.ExecuteRequest(epoch=epoch, step=message)


def reset_frame(epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a Reset."""
    return worker_pb2.ExecuteRequest(epoch=epoch, reset=worker_pb2.Reset())


def heartbeat_frame(epoch: int, clock: profile_pb2.Clock | None = None) -> worker_pb2.ExecuteRequest:
    """Encode a Heartbeat; one with our clock is answered with the worker's."""
    return worker_pb2.ExecuteRequest(epoch=epoch, heartbeat=worker_pb2.Heartbeat(clock=clock))


def recording_frame(epoch: int, recording: profile_pb2.Recording) -> worker_pb2.ExecuteRequest:
    """Encode what is to be recorded."""
    return worker_pb2.ExecuteRequest(epoch=epoch, recording=recording)


def log_level_frame(epoch: int, change: log_pb2.LevelChange) -> worker_pb2.ExecuteRequest:
    """Encode from which level on to log."""
    return worker_pb2.ExecuteRequest(epoch=epoch, log_level=change)


def farewell_frame(epoch: int) -> worker_pb2.ExecuteRequest:
    """Encode a Farewell."""
    return worker_pb2.ExecuteRequest(epoch=epoch, farewell=worker_pb2.Farewell())


def _admission(admission: LaneAdmission) -> worker_pb2.LaneAdmission:
    return worker_pb2.LaneAdmission(
        lane=admission.lane,
        **generation_fields(admission.generation),
        token_ids=pack_ids(admission.token_ids),
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        final_length=admission.final_length,
        page_tables=[worker_pb2.PageTable(page_ids=pack_ids(table)) for table in admission.page_tables],
        partition=admission.partition,
        sampling=encode_sampling(admission.sampling),
        end_token_ids=pack_ids(admission.end_token_ids),
        min_length=admission.min_length,
        constrained=admission.constrained,
        traceparent=admission.traceparent,
    )


def encode_sampling(sampling: SamplingParams) -> worker_pb2.LaneSampling:
    """Encode sampling parameters."""
    same: dict[str, Any] = {name: getattr(sampling, name) for name in _SAMPLING}
    return worker_pb2.LaneSampling(
        **same,
        bias_token_ids=pack_ids([token_id for token_id, _ in sampling.logit_bias]),
        bias_values=pack_floats([bias for _, bias in sampling.logit_bias]),
    )
