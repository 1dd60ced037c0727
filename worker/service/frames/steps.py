"""Steps: protobuf on the wire, worker.step inside."""

import numpy as np

from pypto_serving.wire.checks import FrameError, check_distinct, check_equal_lengths, check_range
from pypto_serving.wire.columns import NO_PAGE, Ids, unpack_ids_below
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.service.frames.admissions import decode_admissions
from worker.service.frames.description import WorkerDescription, max_table_length
from worker.step import StepInput


def decode_step(step: pb.Step, worker: WorkerDescription) -> StepInput:
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
    return StepInput(
        step_id=step.step_id,
        released_lanes=released,
        admissions=decode_admissions(step, worker),
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
    _check_pages(pages, groups, worker)
    return lanes, groups, pages


def _check_pages(pages: Ids, groups: Ids, worker: WorkerDescription) -> None:
    limits = np.array([group.num_pages for group in worker.cache_groups], dtype=np.uint64)[groups]
    wrong = np.flatnonzero(pages >= limits)
    if len(wrong):
        first = wrong[0]
        raise FrameError(f"step.grown_pages: {pages[first]} is not below {limits[first]}, the pages of cache group {groups[first]}")


def _trims(step: pb.Step, worker: WorkerDescription) -> tuple[Ids, Ids, Ids]:
    lanes = unpack_ids_below(step.trimmed_lanes, "step.trimmed_lanes", worker.max_lanes)
    groups = unpack_ids_below(step.trimmed_groups, "step.trimmed_groups", len(worker.cache_groups))
    entries = unpack_ids_below(step.trimmed_entries, "step.trimmed_entries", NO_PAGE)
    check_equal_lengths({"step.trimmed_lanes": lanes, "step.trimmed_groups": groups, "step.trimmed_entries": entries})
    _check_trims(entries, groups, worker)
    return lanes, groups, entries


def _check_trims(entries: Ids, groups: Ids, worker: WorkerDescription) -> None:
    for index, group in enumerate(worker.cache_groups):
        counts = entries[groups == index]
        if len(counts) and group.window_tokens is None:
            raise FrameError(f"step.trimmed_groups: {index} ({group.name}) has no window; only sliding groups lose entries")
        if len(counts) and int(counts.max()) > max_table_length(group, worker):
            raise FrameError(f"step.trimmed_entries: {counts.max()}, limit {max_table_length(group, worker)} for cache group {group.name}")


def _masks(step: pb.Step, worker: WorkerDescription) -> dict[int, bytes]:
    num_bytes = -(-worker.vocab_size // 8)
    check_range("step.masks (number)", len(step.masks), 0, worker.max_lanes)
    for mask in step.masks:
        check_range("step.masks.lane", mask.lane, 0, worker.max_lanes - 1)
        if len(mask.allowed) != num_bytes:
            raise FrameError(f"step.masks.allowed: {len(mask.allowed)} bytes, a mask over {worker.vocab_size} tokens has {num_bytes}")
    check_distinct("step.masks.lane", [mask.lane for mask in step.masks])
    return {mask.lane: mask.allowed for mask in step.masks}
