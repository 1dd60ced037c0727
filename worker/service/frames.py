"""Frames of the worker protocol: protobuf on the wire, worker.step inside.

Decoding checks a frame as a whole, without looking at the worker's state; nothing has happened yet when it raises FrameError.
"""

from typing import Any

import numpy as np

from pypto_serving.wire.checks import FrameError, check_distinct, check_equal_lengths, check_name, check_range
from pypto_serving.wire.columns import (
    MAX_GENERATION,
    NO_PAGE,
    Ids,
    generation_fields,
    generation_of,
    pack_floats,
    pack_generations,
    pack_ids,
    unpack_ids,
    unpack_ids_below,
)
from pypto_serving.wire.contract import FEATURES, MAX_FEATURES, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from pypto_serving.wire.sampling import check_sampling
from pypto_serving.wire.traceparent import clean_traceparent
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.step import SAMPLING_FORMATS, CacheGroup, LaneAdmission, LaneSampling, PromptTokenLogprobs, Step, StepResult, WorkerDescription

_MAX_UINT32 = 0xFFFFFFFF


def check_hello(hello: pb.Hello) -> None:
    """Raise FrameError when a required field of `hello` is missing or a name is too long."""
    if not hello.control_plane_id:
        raise FrameError("hello.control_plane_id: empty; every instance of a control plane has its own")
    if not hello.model_fingerprint:
        raise FrameError("hello.model_fingerprint: empty; it has to be that of the model served")
    for field in ("control_plane_id", "model_fingerprint", "resume_incarnation", "worker_address", "model_name"):
        if getattr(hello, field):
            check_name(f"hello.{field}", getattr(hello, field))
    check_range("hello.features (number)", len(hello.features), 0, MAX_FEATURES)


def common_version(hello: pb.Hello) -> int:
    """The newest version of the protocol that both sides speak, or 0."""
    newest = min(hello.protocol_version, PROTOCOL_VERSION)
    oldest = max(hello.min_protocol_version or hello.protocol_version, MIN_PROTOCOL_VERSION)
    return newest if newest >= oldest else 0


def encode_welcome(worker: WorkerDescription, protocol_version: int, epoch: int, resumed: bool, last_step_id: int) -> pb.Welcome:
    """The answer to Hello."""
    return pb.Welcome(
        protocol_version=protocol_version,
        features=FEATURES,
        epoch=epoch,
        incarnation=worker.incarnation,
        resumed=resumed,
        last_step_id=last_step_id,
        model_fingerprint=worker.model_fingerprint,
        weights_digest=worker.weights_digest(),
        numerics_id=worker.numerics_id,
        limits=pb.WorkerLimits(
            vocab_size=worker.vocab_size,
            max_model_len=worker.max_model_len,
            max_lanes=worker.max_lanes,
            max_step_tokens=worker.max_step_tokens,
            max_steps_in_flight=worker.max_steps_in_flight,
            lease_ms=round(worker.lease_seconds * 1000),
            num_partitions=worker.num_partitions,
        ),
        cache_groups=[
            pb.CacheGroup(
                name=group.name,
                num_layers=group.num_layers,
                page_tokens=group.page_tokens,
                rows_per_page=group.page_tokens,
                row_bytes=group.row_bytes,
                window_tokens=group.window_tokens,
                num_pages=group.num_pages,
            )
            for group in worker.cache_groups
        ],
    )


def decode_step(step: pb.Step, worker: WorkerDescription) -> Step:
    """Check `step` and turn its columns into arrays (views of the message's bytes); raises FrameError.

    No check takes Python work per entry, nor more of it than there are lanes: a frame may have millions of entries.
    """
    if not step.step_id:
        raise FrameError("step.step_id: 0; the first step is 1")
    if step.acked_step_id >= step.step_id:
        raise FrameError(f"step.acked_step_id: {step.acked_step_id} is not below the step's own id {step.step_id}")
    released = unpack_ids_below(step.released_lanes, "step.released_lanes", worker.max_lanes)
    check_distinct("step.released_lanes", released)
    chunk_lanes, chunk_tokens = _chunks(step, worker)
    grown_lanes, grown_groups, grown_pages = _growth(step, worker)
    trimmed_lanes, trimmed_groups, trimmed_entries = _trims(step, worker)
    return Step(
        step_id=step.step_id,
        released_lanes=released,
        admissions=_admissions(step, worker),
        trimmed_lanes=trimmed_lanes,
        trimmed_groups=trimmed_groups,
        trimmed_entries=trimmed_entries,
        grown_lanes=grown_lanes,
        grown_groups=grown_groups,
        grown_pages=grown_pages,
        chunk_lanes=chunk_lanes,
        chunk_tokens=chunk_tokens,
        masks=_masks(step, worker),
    )


def _admissions(step: pb.Step, worker: WorkerDescription) -> tuple[LaneAdmission, ...]:
    check_range("step.admissions (number)", len(step.admissions), 0, worker.max_lanes)
    check_distinct("step.admissions.lane", [admission.lane for admission in step.admissions])
    return tuple(_admission(admission, worker) for admission in step.admissions)


def _admission(admission: pb.LaneAdmission, worker: WorkerDescription) -> LaneAdmission:
    field = "step.admissions"
    if not admission.HasField("sampling"):
        raise FrameError(f"{field}.sampling: missing; every lane says how its tokens are drawn")
    token_ids = unpack_ids_below(admission.token_ids, f"{field}.token_ids", worker.vocab_size)
    check_range(f"{field}.lane", admission.lane, 0, worker.max_lanes - 1)
    check_range(f"{field}.token_ids (length)", len(token_ids), 1, worker.max_model_len)
    check_range(f"{field}.num_prompt_tokens", admission.num_prompt_tokens, 1, len(token_ids))
    check_range(f"{field}.num_computed_tokens", admission.num_computed_tokens, 0, len(token_ids) - 1)
    check_range(f"{field}.final_length", admission.final_length, len(token_ids), worker.max_model_len)
    check_range(f"{field}.generation", generation_of(admission), 0, MAX_GENERATION)
    check_range(f"{field}.partition", admission.partition, 0, worker.num_partitions - 1)
    return LaneAdmission(
        lane=admission.lane,
        generation=generation_of(admission),
        token_ids=token_ids,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        final_length=admission.final_length,
        min_length=admission.min_length,
        end_token_ids=unpack_ids_below(admission.end_token_ids, f"{field}.end_token_ids", worker.vocab_size),
        page_tables=_page_tables(admission, worker),
        partition=admission.partition,
        sampling=_sampling(admission.sampling, worker.vocab_size),
        constrained=admission.constrained,
        traceparent=clean_traceparent(admission.traceparent),
    )


def _page_tables(admission: pb.LaneAdmission, worker: WorkerDescription) -> tuple[Ids, ...]:
    field = "step.admissions.page_tables"
    if len(admission.page_tables) != len(worker.cache_groups):
        raise FrameError(f"{field}: {len(admission.page_tables)} tables, the model has {len(worker.cache_groups)} cache groups")
    return tuple(_page_table(table, group, worker) for table, group in zip(admission.page_tables, worker.cache_groups, strict=True))


def _page_table(table: pb.PageTable, group: CacheGroup, worker: WorkerDescription) -> Ids:
    field = f"step.admissions.page_tables ({group.name})"
    pages = unpack_ids(table.page_ids, field)
    check_range(f"{field} (length)", len(pages), 0, worker.max_table_length(group))
    num_gone = 0 if group.window_tokens is None else int(np.count_nonzero(pages == NO_PAGE))  # they come first
    held = pages[num_gone:]
    if len(held) and int(held.max()) >= group.num_pages:
        raise FrameError(f"{field}: {held.max()} is not below {group.num_pages}, the pages of the group")
    return pages


def _sampling(sampling: pb.LaneSampling, vocab_size: int) -> LaneSampling:
    bias_token_ids, bias_values = check_sampling("step.admissions.sampling", sampling, vocab_size)
    same: dict[str, Any] = {name: getattr(sampling, name) for name in SAMPLING_FORMATS}
    if not sampling.HasField("prompt_logprobs"):
        same["prompt_logprobs"] = None
    return LaneSampling(**same, bias_token_ids=bias_token_ids, bias_values=bias_values)


def _chunks(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids]:
    lanes = unpack_ids_below(step.chunk_lanes, "step.chunk_lanes", worker.max_lanes)
    tokens = unpack_ids_below(step.chunk_tokens, "step.chunk_tokens", worker.max_step_tokens + 1)
    check_equal_lengths({"step.chunk_lanes": lanes, "step.chunk_tokens": tokens})
    check_distinct("step.chunk_lanes", lanes)
    total = int(tokens.sum(dtype=np.uint64))
    if total > worker.max_step_tokens:
        raise FrameError(f"step.chunk_tokens: {total} tokens in all, limit {worker.max_step_tokens}")
    return lanes, tokens


def _growth(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids, Ids]:
    lanes = unpack_ids_below(step.grown_lanes, "step.grown_lanes", worker.max_lanes)
    groups = unpack_ids_below(step.grown_groups, "step.grown_groups", len(worker.cache_groups))
    pages = unpack_ids_below(step.grown_pages, "step.grown_pages", NO_PAGE)
    check_equal_lengths({"step.grown_lanes": lanes, "step.grown_groups": groups, "step.grown_pages": pages})
    limits = np.array([group.num_pages for group in worker.cache_groups], dtype=np.uint64)[groups]
    wrong = np.flatnonzero(pages >= limits)
    if len(wrong):
        first = wrong[0]
        raise FrameError(f"step.grown_pages: {pages[first]} is not below {limits[first]}, the pages of cache group {groups[first]}")
    return lanes, groups, pages


def _trims(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids, Ids]:
    lanes = unpack_ids_below(step.trimmed_lanes, "step.trimmed_lanes", worker.max_lanes)
    groups = unpack_ids_below(step.trimmed_groups, "step.trimmed_groups", len(worker.cache_groups))
    entries = unpack_ids_below(step.trimmed_entries, "step.trimmed_entries", NO_PAGE)
    check_equal_lengths({"step.trimmed_lanes": lanes, "step.trimmed_groups": groups, "step.trimmed_entries": entries})
    for index, group in enumerate(worker.cache_groups):
        counts = entries[groups == index]
        if len(counts) and group.window_tokens is None:
            raise FrameError(f"step.trimmed_groups: {index} ({group.name}) has no window; only sliding groups lose entries")
        if len(counts) and int(counts.max()) > worker.max_table_length(group):
            raise FrameError(f"step.trimmed_entries: {counts.max()}, limit {worker.max_table_length(group)} for cache group {group.name}")
    return lanes, groups, entries


def _masks(step: pb.Step, worker: WorkerDescription) -> dict[int, bytes]:
    num_bytes = -(-worker.vocab_size // 8)
    check_range("step.masks (number)", len(step.masks), 0, worker.max_lanes)
    for mask in step.masks:
        check_range("step.masks.lane", mask.lane, 0, worker.max_lanes - 1)
        if len(mask.allowed) != num_bytes:
            raise FrameError(f"step.masks.allowed: {len(mask.allowed)} bytes, a mask over {worker.vocab_size} tokens has {num_bytes}")
    check_distinct("step.masks.lane", [mask.lane for mask in step.masks])
    return {mask.lane: mask.allowed for mask in step.masks}


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
