"""The rules by which a step changes lanes and picks those that run; protos/pypto_serving/worker/v1/worker.proto states them.

What can be told without the lanes (ranges, lengths, lanes named twice) was checked when the step was decoded, see worker.service.frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.columns import NO_PAGE, Ids
from worker.limits import RunnerLimits
from worker.step import CacheGroup, LaneAdmission, StepInput

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
LaneRecords = npt.NDArray[np.void]

_NO_WINDOW = np.iinfo(np.int64).max


class InvalidStep(ValueError):
    """A step breaks the contract; the message names field, value and limit. Nothing has changed."""


@dataclass(frozen=True)
class Run:
    """The lanes that run, in order: `counts[i]` tokens of lane `lanes[i]` from index `starts[i]` on."""

    lanes: Ints  # [B]
    starts: Ints  # [B]
    counts: Ints  # [B], each at least 1
    samples: Bools  # [B]: whether the lane draws its next token

    @cached_property
    def row_sequences(self) -> Ints:
        """For each token row [T], the index of its sequence in `lanes`."""
        return np.repeat(np.arange(len(self.lanes)), self.counts)

    @cached_property
    def row_ends(self) -> Ints:
        """For each sequence [B], the row after its last."""
        return np.cumsum(self.counts)

    def first_positions(self, marked: Bools) -> Ints:
        """For each sequence [B], the position of its first token row that is `marked` ([T] or more, what is beyond is ignored), or -1."""
        rows = np.flatnonzero(marked[: len(self.row_sequences)])[::-1]
        found = np.full(len(self.lanes), -1)
        found[self.row_sequences[rows]] = self.positions[rows]  # of a sequence's rows the first comes last
        return found

    @cached_property
    def positions(self) -> Ints:
        """For each token row [T], its index in its sequence."""
        num_rows = len(self.row_sequences)
        return np.arange(num_rows) + np.repeat(self.starts - self.row_ends + self.counts, self.counts)


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

    def apply(self, records: LaneRecords, step: StepInput) -> Run:
        """Change `records` as `step` says; raises InvalidStep, and leaves them half changed, when it breaks a rule."""
        self._release(records, step.released_lanes)
        for admission in step.admissions:
            self._admit(records, admission)
        self._trim(records, step)
        self._grow(records, step)
        run = self._select(records, step)
        self._check_run(records, run)
        self._check_masks(records, run, step.masks)
        return run

    def _release(self, records: LaneRecords, lanes: Ids) -> None:
        _check_live(records, "released_lanes", lanes)
        records["live"][lanes] = False

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

    def _trim(self, records: LaneRecords, step: StepInput) -> None:
        lanes, groups, entries = step.trimmed_lanes, step.trimmed_groups, step.trimmed_entries
        _check_live(records, "trimmed_lanes", lanes)
        lengths = records["num_pages"][lanes, groups]
        _check(entries > lengths, lambda i: f"trimmed_entries: {entries[i]}, the page table of lane {lanes[i]} has {lengths[i]}")
        np.maximum.at(records["num_trimmed"], (lanes, groups), entries)

    def _grow(self, records: LaneRecords, step: StepInput) -> None:
        lanes, groups = step.grown_lanes, step.grown_groups
        _check_live(records, "grown_lanes", lanes)
        np.add.at(records["num_pages"], (lanes, groups), 1)
        lengths, longest = records["num_pages"][lanes, groups], self.max_table_lengths[groups]
        _check(lengths > longest, lambda i: f"grown_lanes: lane {lanes[i]} gets {lengths[i]} pages, limit {longest[i]}")

    def _select(self, records: LaneRecords, step: StepInput) -> Run:
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
        return Run(running, records["num_computed"][running], counts[running], samples)

    def _check_run(self, records: LaneRecords, run: Run) -> None:
        num_tokens = int(run.counts.sum())
        if num_tokens > self._max_step_tokens:
            raise InvalidStep(f"chunk_tokens: {num_tokens} tokens run in all, limit {self._max_step_tokens}")
        ends = run.starts + run.counts
        room = (records["num_pages"][run.lanes] * self._page_tokens).min(axis=1)
        _check(ends > room, lambda i: f"grown_lanes: lane {run.lanes[i]} has pages for {room[i]} tokens and runs up to {ends[i]}")
        first_key = np.maximum(run.starts[:, None] + 1 - self._windows, 0)
        lost = (records["num_trimmed"][run.lanes] > first_key // self._page_tokens).any(axis=1)
        _check(lost, lambda i: f"trimmed_entries: lane {run.lanes[i]} runs from token {run.starts[i]} on and lost pages that it still sees")

    def _check_masks(self, records: LaneRecords, run: Run, masks: dict[int, bytes]) -> None:
        lanes = np.fromiter(masks, dtype=np.uint32, count=len(masks))
        _check_live(records, "masks", lanes)
        _check(~records["constrained"][lanes], lambda i: f"masks: lane {lanes[i]} is not constrained")
        sampling = run.lanes[run.samples]
        # The mask of a lane that has ended meanwhile may have been on its way already.
        _check(~np.isin(lanes, sampling) & ~records["ended"][lanes], lambda i: f"masks: lane {lanes[i]} does not sample")
        waiting = sampling[records["constrained"][sampling]]
        _check(~np.isin(waiting, lanes), lambda i: f"masks: none for lane {waiting[i]}, which is constrained and samples")


def _check(wrong: Bools, describe: Callable[[int], str]) -> None:
    if wrong.any():
        raise InvalidStep(describe(int(wrong.argmax())))


def _check_live(records: LaneRecords, field: str, lanes: Ids) -> None:
    _check(~records["live"][lanes], lambda i: f"{field}: lane {lanes[i]} is not live")
