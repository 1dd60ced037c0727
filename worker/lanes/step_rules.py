"""The rules by which a step changes lanes and picks those that run; protos/pypto_serving/worker/v1/worker.proto states them.

What can be told without the lanes (ranges, lengths, lanes named twice) was checked when the step was decoded, see worker.service.frames.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.columns import NO_PAGE, Ids
from worker.batch import ScheduledLanes
from worker.step import Bools, CacheGroup, Ints, LaneAdmission, RunnerLimits, Step

LaneRecords = npt.NDArray[np.void]

_NO_WINDOW = np.iinfo(np.int64).max


class InvalidStep(ValueError):
    """A step breaks the contract; the message names field, value and limit. Nothing has changed."""


def lane_records(num_lanes: int, num_groups: int) -> LaneRecords:
    """One record per lane, all free."""
    fields: list[Any] = [(name, "?") for name in ("live", "ended", "constrained")]
    fields += [(name, "i8") for name in ("generation", "num_tokens", "num_computed", "num_prompt_tokens", "final_length", "min_length")]
    fields += [(name, "i8", (num_groups,)) for name in ("num_pages", "num_trimmed")]
    records = np.zeros(num_lanes, dtype=fields)
    records["generation"] = -1
    return records


class StepRules:
    """Applies steps to lane records."""

    def __init__(self, limits: RunnerLimits, groups: Sequence[CacheGroup]) -> None:
        self._max_step_tokens = limits.max_step_tokens
        self._page_tokens = np.array([group.page_tokens for group in groups], dtype=np.int64)
        self._windows = np.array([group.window_tokens or _NO_WINDOW for group in groups], dtype=np.int64)
        self.max_table_lengths: Ints = -(-limits.max_model_len // self._page_tokens)

    def apply(self, records: LaneRecords, step: Step) -> ScheduledLanes:
        """Change `records` as `step` says; raises InvalidStep, and leaves them half changed, when it breaks a rule."""
        _check_live(records, "released_lanes", step.released_lanes)
        records["live"][step.released_lanes] = False
        for admission in step.admissions:
            self._admit(records, admission)
        self._trim(records, step)
        self._grow(records, step)
        scheduled = self._schedule(records, step)
        self._check_scheduled(records, scheduled)
        self._check_masks(records, scheduled, step.masks)
        return scheduled

    def _admit(self, records: LaneRecords, admission: LaneAdmission) -> None:
        record = records[admission.lane]
        if record["live"]:
            raise InvalidStep(f"admissions.lane: {admission.lane} is live, it has to be free")
        if admission.generation <= record["generation"]:
            raise InvalidStep(f"admissions.generation: {admission.generation}, lane {admission.lane} had {record['generation']} already")
        records[admission.lane] = (
            True,
            False,
            admission.constrained,
            admission.generation,
            len(admission.token_ids),
            admission.num_computed_tokens,
            admission.num_prompt_tokens,
            admission.final_length,
            admission.min_length,
            [len(table) for table in admission.page_tables],
            [np.count_nonzero(table == NO_PAGE) for table in admission.page_tables],
        )

    def _trim(self, records: LaneRecords, step: Step) -> None:
        lanes, groups, entries = step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries
        _check_live(records, "trimmed_lanes", lanes)
        lengths = records["num_pages"][lanes, groups]
        _check(entries > lengths, lambda i: f"trimmed_entries: {entries[i]}, the page table of lane {lanes[i]} has {lengths[i]}")
        np.maximum.at(records["num_trimmed"], (lanes, groups), entries)

    def _grow(self, records: LaneRecords, step: Step) -> None:
        lanes, groups = step.grown_lanes, step.grown_groups
        _check_live(records, "grown_lanes", lanes)
        np.add.at(records["num_pages"], (lanes, groups), 1)
        lengths, longest = records["num_pages"][lanes, groups], self.max_table_lengths[groups]
        _check(lengths > longest, lambda i: f"grown_lanes: lane {lanes[i]} gets {lengths[i]} pages, limit {longest[i]}")

    def _schedule(self, records: LaneRecords, step: Step) -> ScheduledLanes:
        lanes, tokens = step.chunk_lanes, step.chunk_tokens.astype(np.int64)
        _check_live(records, "chunk_lanes", lanes)
        runnable = records["live"] & ~records["ended"]
        pending = records["num_tokens"] - records["num_computed"]
        _check(
            runnable[lanes] & (tokens > pending[lanes]),
            lambda i: f"chunk_tokens: {tokens[i]}, lane {lanes[i]} has {pending[lanes[i]]} tokens not yet computed",
        )
        counts = (runnable & (pending == 1)).astype(np.int64)
        counts[lanes] = np.where(runnable[lanes], tokens, 0)
        running = np.flatnonzero(counts)
        last_known = counts[running] == pending[running]
        samples = last_known & (records["num_tokens"][running] < records["final_length"][running])
        return ScheduledLanes(running, records["num_computed"][running], counts[running], samples)

    def _check_scheduled(self, records: LaneRecords, scheduled: ScheduledLanes) -> None:
        num_tokens = int(scheduled.counts.sum())
        if num_tokens > self._max_step_tokens:
            raise InvalidStep(f"chunk_tokens: {num_tokens} tokens run in all, limit {self._max_step_tokens}")
        ends = scheduled.starts + scheduled.counts
        room = (records["num_pages"][scheduled.lanes] * self._page_tokens).min(axis=1)
        _check(ends > room, lambda i: f"grown_lanes: lane {scheduled.lanes[i]} has pages for {room[i]} tokens and runs up to {ends[i]}")
        first_key = np.maximum(scheduled.starts[:, None] + 1 - self._windows, 0)
        lost = (records["num_trimmed"][scheduled.lanes] > first_key // self._page_tokens).any(axis=1)
        _check(
            lost,
            lambda i: (
                f"trimmed_entries: lane {scheduled.lanes[i]} runs from token {scheduled.starts[i]} on and lost pages that it still sees"
            ),
        )

    def _check_masks(self, records: LaneRecords, scheduled: ScheduledLanes, masks: dict[int, bytes]) -> None:
        lanes = np.fromiter(masks, dtype=np.uint32, count=len(masks))
        _check_live(records, "masks", lanes)
        _check(~records["constrained"][lanes], lambda i: f"masks: lane {lanes[i]} is not constrained")
        sampling = scheduled.lanes[scheduled.samples]
        # The mask of a lane that has ended meanwhile may have been on its way already.
        _check(~np.isin(lanes, sampling) & ~records["ended"][lanes], lambda i: f"masks: lane {lanes[i]} does not sample")
        waiting = sampling[records["constrained"][sampling]]
        _check(~np.isin(waiting, lanes), lambda i: f"masks: none for lane {waiting[i]}, which is constrained and samples")


def _check(wrong: Bools, describe: Callable[[int], str]) -> None:
    if wrong.any():
        raise InvalidStep(describe(int(wrong.argmax())))


def _check_live(records: LaneRecords, field: str, lanes: Ids) -> None:
    _check(~records["live"][lanes], lambda i: f"{field}: lane {lanes[i]} is not live")
