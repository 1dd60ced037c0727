"""Frames of the worker protocol: protobuf on the wire, worker.step inside.

Decoding checks a frame as a whole, without looking at the worker's state; nothing has happened yet when it raises FrameError.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pypto_serving.wire.columns import NO_PAGE, Floats, Ids, pack_floats, pack_ids, unpack_floats, unpack_ids
from pypto_serving.wire.contract import MAX_ALTERNATIVES, MAX_NAME_LENGTH
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.step import CacheGroup, LaneAdmission, LaneError, LaneSampling, PromptTokenLogprobs, StepInput, StepOutput, TokenLogprobs

_MAX_UINT32 = 0xFFFFFFFF


class FrameError(ValueError):
    """A frame breaks the contract; the message names the field, its value and the limit."""


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What Welcome says about the worker, and what frames are held against."""

    incarnation: str
    model_fingerprint: str
    numerics_id: str
    vocab_size: int
    max_model_len: int
    max_lanes: int
    max_step_tokens: int
    max_steps_in_flight: int
    lease_seconds: float
    num_partitions: int
    cache_groups: tuple[CacheGroup, ...]


def check_hello(hello: pb.Hello) -> None:
    """Raise FrameError when a required field of `hello` is missing or a name is too long."""
    if not hello.control_plane_id:
        raise FrameError("hello.control_plane_id: empty; every instance of a control plane has its own")
    if not hello.model_fingerprint:
        raise FrameError("hello.model_fingerprint: empty; it has to be that of the model served")
    for field in ("control_plane_id", "model_fingerprint", "resume_incarnation"):
        length = len(getattr(hello, field))
        if length > MAX_NAME_LENGTH:
            raise FrameError(f"hello.{field}: {length} characters, limit {MAX_NAME_LENGTH}")
        if not getattr(hello, field).isprintable():
            raise FrameError(f"hello.{field}: {getattr(hello, field)!r} is not printable")


def encode_welcome(worker: WorkerDescription, epoch: int, resumed: bool, last_step_id: int) -> pb.Welcome:
    """The answer to Hello."""
    return pb.Welcome(
        epoch=epoch,
        incarnation=worker.incarnation,
        resumed=resumed,
        last_step_id=last_step_id,
        model_fingerprint=worker.model_fingerprint,
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
        cache_groups=[_encode_group(group) for group in worker.cache_groups],
    )


def _encode_group(group: CacheGroup) -> pb.CacheGroup:
    return pb.CacheGroup(
        name=group.name,
        num_layers=group.num_layers,
        page_tokens=group.page_tokens,
        rows_per_page=group.page_tokens,
        row_bytes=group.row_bytes,
        window_tokens=group.window_tokens,
        num_pages=group.num_pages,
    )


def decode_step(step: pb.Step, worker: WorkerDescription) -> StepInput:
    """Check `step` and turn its columns into arrays (views of the message's bytes); raises FrameError.

    No check takes Python work per entry, nor more of it than there are lanes: a frame may have millions of entries.
    """
    if not step.step_id:
        raise FrameError("step.step_id: 0; the first step is 1")
    if step.acked_step_id >= step.step_id:
        raise FrameError(f"step.acked_step_id: {step.acked_step_id} is not below the step's own id {step.step_id}")
    released = _ids(step.released_lanes, "step.released_lanes", worker.max_lanes)
    _check_distinct(released, "step.released_lanes")
    chunk_lanes, chunk_tokens = _chunks(step, worker)
    grown_lanes, grown_groups, grown_pages = _growth(step, worker)
    trimmed_lanes, trimmed_groups, trimmed_entries = _trims(step, worker)
    return StepInput(
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


def _ids(column: bytes, field: str, limit: int) -> Ids:
    """Unpack a column whose values are all below `limit`."""
    try:
        ids = unpack_ids(column, field)
    except ValueError as error:
        raise FrameError(str(error)) from None
    if len(ids) and int(ids.max()) >= limit:
        raise FrameError(f"{field}: {ids.max()} is not below {limit}")
    return ids


def _check_distinct(ids: Ids | Sequence[int], field: str) -> None:
    if len(ids) > 1 and len(np.unique(np.asarray(ids))) < len(ids):
        raise FrameError(f"{field}: names a lane twice")


def _check_equal_lengths(columns: dict[str, int]) -> None:
    if len(set(columns.values())) > 1:
        lengths = ", ".join(f"{field} {length}" for field, length in columns.items())
        raise FrameError(f"columns that belong together differ in length: {lengths}")


def _chunks(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids]:
    lanes = _ids(step.chunk_lanes, "step.chunk_lanes", worker.max_lanes)
    tokens = _ids(step.chunk_tokens, "step.chunk_tokens", worker.max_step_tokens + 1)
    _check_equal_lengths({"step.chunk_lanes": len(lanes), "step.chunk_tokens": len(tokens)})
    _check_distinct(lanes, "step.chunk_lanes")
    total = int(tokens.sum(dtype=np.uint64))
    if total > worker.max_step_tokens:
        raise FrameError(f"step.chunk_tokens: {total} tokens in all, limit {worker.max_step_tokens}")
    return lanes, tokens


def _growth(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids, Ids]:
    lanes = _ids(step.grown_lanes, "step.grown_lanes", worker.max_lanes)
    groups = _ids(step.grown_groups, "step.grown_groups", len(worker.cache_groups))
    pages = _ids(step.grown_pages, "step.grown_pages", NO_PAGE)
    _check_equal_lengths({"step.grown_lanes": len(lanes), "step.grown_groups": len(groups), "step.grown_pages": len(pages)})
    _check_pages(pages, groups, worker)
    return lanes, groups, pages


def _check_pages(pages: Ids, groups: Ids, worker: WorkerDescription) -> None:
    limits = np.array([group.num_pages for group in worker.cache_groups], dtype=np.uint64)[groups]
    wrong = np.flatnonzero(pages >= limits)
    if len(wrong):
        first = wrong[0]
        raise FrameError(f"step.grown_pages: {pages[first]} is not below {limits[first]}, the pages of cache group {groups[first]}")


def _trims(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids, Ids]:
    lanes = _ids(step.trimmed_lanes, "step.trimmed_lanes", worker.max_lanes)
    groups = _ids(step.trimmed_groups, "step.trimmed_groups", len(worker.cache_groups))
    entries = _ids(step.trimmed_entries, "step.trimmed_entries", NO_PAGE)
    _check_equal_lengths({"step.trimmed_lanes": len(lanes), "step.trimmed_groups": len(groups), "step.trimmed_entries": len(entries)})
    _check_trims(entries, groups, worker)
    return lanes, groups, entries


def _check_trims(entries: Ids, groups: Ids, worker: WorkerDescription) -> None:
    for index, group in enumerate(worker.cache_groups):
        counts = entries[groups == index]
        if len(counts) and group.window_tokens is None:
            raise FrameError(f"step.trimmed_groups: {index} ({group.name}) has no window; only sliding groups lose entries")
        if len(counts) and int(counts.max()) > _max_table_length(group, worker):
            raise FrameError(f"step.trimmed_entries: {counts.max()}, limit {_max_table_length(group, worker)} for cache group {group.name}")


def _max_table_length(group: CacheGroup, worker: WorkerDescription) -> int:
    return -(-worker.max_model_len // group.page_tokens)


def _masks(step: pb.Step, worker: WorkerDescription) -> dict[int, bytes]:
    num_bytes = -(-worker.vocab_size // 8)
    _check_range("step.masks (number)", len(step.masks), 0, worker.max_lanes)
    for mask in step.masks:
        _check_range("step.masks.lane", mask.lane, 0, worker.max_lanes - 1)
        if len(mask.allowed) != num_bytes:
            raise FrameError(f"step.masks.allowed: {len(mask.allowed)} bytes, a mask over {worker.vocab_size} tokens has {num_bytes}")
    _check_distinct([mask.lane for mask in step.masks], "step.masks.lane")
    return {mask.lane: mask.allowed for mask in step.masks}


def _admissions(step: pb.Step, worker: WorkerDescription) -> tuple[LaneAdmission, ...]:
    _check_range("step.admissions (number)", len(step.admissions), 0, worker.max_lanes)
    _check_distinct([admission.lane for admission in step.admissions], "step.admissions.lane")
    return tuple(_admission(admission, worker) for admission in step.admissions)


def _admission(admission: pb.LaneAdmission, worker: WorkerDescription) -> LaneAdmission:
    field = "step.admissions"
    if not admission.HasField("sampling"):
        raise FrameError(f"{field}.sampling: missing; every lane says how its tokens are drawn")
    token_ids = _ids(admission.token_ids, f"{field}.token_ids", worker.vocab_size)
    _check_range(f"{field}.lane", admission.lane, 0, worker.max_lanes - 1)
    _check_range(f"{field}.token_ids (length)", len(token_ids), 1, worker.max_model_len)
    _check_range(f"{field}.num_prompt_tokens", admission.num_prompt_tokens, 1, len(token_ids))
    _check_range(f"{field}.num_computed_tokens", admission.num_computed_tokens, 0, len(token_ids) - 1)
    _check_range(f"{field}.final_length", admission.final_length, len(token_ids), worker.max_model_len)
    _check_range(f"{field}.partition", admission.partition, 0, worker.num_partitions - 1)
    return LaneAdmission(
        lane=admission.lane,
        generation=admission.generation,
        token_ids=token_ids,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        final_length=admission.final_length,
        min_length=admission.min_length,
        end_token_ids=_ids(admission.end_token_ids, f"{field}.end_token_ids", worker.vocab_size),
        page_tables=_page_tables(admission, worker),
        partition=admission.partition,
        sampling=_sampling(admission.sampling, worker.vocab_size),
        constrained=admission.constrained,
    )


def _page_tables(admission: pb.LaneAdmission, worker: WorkerDescription) -> tuple[Ids, ...]:
    field = "step.admissions.page_tables"
    if len(admission.page_tables) != len(worker.cache_groups):
        raise FrameError(f"{field}: {len(admission.page_tables)} tables, the model has {len(worker.cache_groups)} cache groups")
    return tuple(_page_table(table, group, worker) for table, group in zip(admission.page_tables, worker.cache_groups, strict=True))


def _page_table(table: pb.PageTable, group: CacheGroup, worker: WorkerDescription) -> Ids:
    field = f"step.admissions.page_tables ({group.name})"
    pages = _ids(table.page_ids, field, _MAX_UINT32 + 1)
    _check_range(f"{field} (length)", len(pages), 0, _max_table_length(group, worker))
    num_gone = 0 if group.window_tokens is None else int(np.count_nonzero(pages == NO_PAGE))  # they come first
    held = pages[num_gone:]
    if len(held) and int(held.max()) >= group.num_pages:
        raise FrameError(f"{field}: {held.max()} is not below {group.num_pages}, the pages of the group")
    return pages


def _sampling(sampling: pb.LaneSampling, vocab_size: int) -> LaneSampling:
    field = "step.admissions.sampling"
    _check_range(f"{field}.temperature", sampling.temperature, 0.0, math.inf)
    _check_range(f"{field}.top_p", sampling.top_p, 0.0, 1.0)
    _check_range(f"{field}.min_p", sampling.min_p, 0.0, 1.0)
    _check_range(f"{field}.presence_penalty", sampling.presence_penalty, -math.inf, math.inf)
    _check_range(f"{field}.frequency_penalty", sampling.frequency_penalty, -math.inf, math.inf)
    _check_range(f"{field}.repetition_penalty", sampling.repetition_penalty, 0.0, math.inf)
    if sampling.repetition_penalty == 0.0:
        raise FrameError(f"{field}.repetition_penalty: 0, it has to be positive")
    _check_range(f"{field}.top_logprobs", sampling.top_logprobs, 0, min(vocab_size, MAX_ALTERNATIVES))
    _check_range(f"{field}.prompt_logprobs", sampling.prompt_logprobs, 0, min(vocab_size, MAX_ALTERNATIVES))
    bias_token_ids, bias_values = _bias(sampling, vocab_size)
    return LaneSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        bias_token_ids=bias_token_ids,
        bias_values=bias_values,
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
    )


def _bias(sampling: pb.LaneSampling, vocab_size: int) -> tuple[Ids, Floats]:
    ids_field, values_field = "step.admissions.sampling.bias_token_ids", "step.admissions.sampling.bias_values"
    token_ids = _ids(sampling.bias_token_ids, ids_field, vocab_size)
    try:
        values = unpack_floats(sampling.bias_values, values_field)
    except ValueError as error:
        raise FrameError(str(error)) from None
    _check_equal_lengths({ids_field: len(token_ids), values_field: len(values)})
    if not np.isfinite(values).all():
        raise FrameError(f"{values_field}: {values[~np.isfinite(values)][0]} is not finite")
    return token_ids, values


def _check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise FrameError unless `value` is finite and low <= value <= high."""
    if not math.isfinite(value):
        raise FrameError(f"{field}: {value} is not finite")
    if not low <= value <= high:
        raise FrameError(f"{field}: {value}, allowed are {low} to {high}")


def encode_result(output: StepOutput, device_us: int, idle_us: int) -> pb.StepResult:
    """The answer to a step that was executed."""
    return pb.StepResult(
        step_id=output.step_id,
        lanes=pack_ids(output.lanes),
        generations=pack_ids(output.generations),
        token_ids=pack_ids(output.token_ids),
        logprobs=[_encode_token_logprobs(entry) for entry in output.logprobs],
        prompt_logprobs=[_encode_prompt_logprobs(entry) for entry in output.prompt_logprobs],
        lane_errors=[_encode_lane_error(error) for error in output.lane_errors],
        digest=output.digest,
        device_us=min(device_us, _MAX_UINT32),
        idle_us=min(idle_us, _MAX_UINT32),
    )


def encode_failure(step_id: int, error: str, device_us: int, idle_us: int) -> pb.StepResult:
    """The answer to a step that failed as a whole, or that was not executed because an earlier one failed."""
    return pb.StepResult(step_id=step_id, error=error, device_us=min(device_us, _MAX_UINT32), idle_us=min(idle_us, _MAX_UINT32))


def _encode_lane_error(error: LaneError) -> pb.LaneError:
    return pb.LaneError(lane=error.lane, generation=error.generation, message=error.message, nothing_to_draw=error.nothing_to_draw)


def _encode_token_logprobs(entry: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        lane=entry.lane, sampled=entry.sampled, top_token_ids=pack_ids(entry.top_token_ids), top_logprobs=pack_floats(entry.top_logprobs)
    )


def _encode_prompt_logprobs(entry: PromptTokenLogprobs) -> pb.PromptTokenLogprobs:
    return pb.PromptTokenLogprobs(
        lane=entry.lane,
        generation=entry.generation,
        first_index=entry.first_index,
        logprobs=pack_floats(entry.logprobs),
        top_token_ids=pack_ids(entry.top_token_ids),
        top_logprobs=pack_floats(entry.top_logprobs),
    )
