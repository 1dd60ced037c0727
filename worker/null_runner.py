"""Executes steps without computing anything: answers them after a given time, to measure and size control planes without accelerators."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker.batch import ScheduledLanes
from worker.lanes.lane_table import LaneOutcomes, LaneTable
from worker.progress import ProgressCounter
from worker.sampling.logprobs import PromptRows, RowLogprobs, TokenRows
from worker.sampling.sampling_rows import SamplingRows
from worker.step import Bools, CacheGroup, Ints, LaneError, RunnerLimits, Step, StepResult
from worker.step_time import StepTime
from worker.warm_up import check_warm_up, warm_up_steps

_NOTHING_TO_DRAW = "no token can be drawn at index {}: mask and minimum length exclude all of them"


@dataclass(frozen=True, slots=True)
class NullPending:
    """A step that is answered at `ready_at`."""

    step: Step
    scheduled: ScheduledLanes
    generations: Ints  # [B]: of the lanes that run
    void: Bools  # [B]: whether a lane ended with the step before
    token_ids: Ints  # [B]; those of lanes that do not sample, or have failed, mean nothing
    failed: Bools  # [B]: whether there was nothing to draw
    token_rows: TokenRows
    prompt_rows: PromptRows
    ready_at: float
    is_ready: bool
    timing: StepTime

    def wait(self) -> None:
        """Wait until the time has passed; any thread may."""
        left = self.ready_at - self.timing.clock()
        if left > 0:
            self.timing.sleep(left)


class NullRunner:
    """The lanes of a runner, without model and cache. One thread owns it; as on an accelerator two steps may be pending.

    A token follows from the seed of its sequence and its index, and is an end token only where a mask allows nothing else. Log
    probabilities say that all tokens are equally likely.
    """

    def __init__(self, limits: RunnerLimits, groups: Sequence[CacheGroup], timing: StepTime, progress: ProgressCounter) -> None:
        self._limits = limits
        self._groups = groups
        self._timing = timing
        self._progress = progress
        self._lanes = LaneTable(limits, groups)
        self._pending: deque[NullPending] = deque()
        self._ready_at = 0.0  # the step launched last

    def execute(self, step: Step) -> StepResult:
        """Launch `step` and collect it."""
        return self.collect(self.launch(step))

    def launch(self, step: Step) -> NullPending:
        """Apply `step` and draw; raises InvalidStep before any effect when the step breaks a rule."""
        now = self._timing.clock()
        scheduled = self._lanes.apply(step)
        self._ready_at = max(now, self._ready_at) + self._timing.seconds(len(scheduled.lanes), int(scheduled.counts.sum()))
        prompt_rows = self._lanes.prompt_rows(scheduled)
        lanes = scheduled.lanes[scheduled.samples]
        rows = self._lanes.sampling_rows(lanes, step.masks)
        self._lanes.advance(scheduled)
        token_ids, failed = np.zeros(len(scheduled.lanes), dtype=np.int64), np.zeros(len(scheduled.lanes), dtype=np.bool_)
        token_ids[scheduled.samples], failed[scheduled.samples] = self._draw(lanes, rows)
        pending = NullPending(
            step=step,
            scheduled=scheduled,
            generations=self._lanes.generations[scheduled.lanes],
            void=np.zeros(len(scheduled.lanes), dtype=np.bool_),
            token_ids=token_ids,
            failed=failed,
            token_rows=TokenRows.of(rows.columns),
            prompt_rows=prompt_rows,
            ready_at=self._ready_at,
            is_ready=self._ready_at <= now,
            timing=self._timing,
        )
        self._pending.append(pending)
        return pending

    def collect(self, pending: NullPending) -> StepResult:
        """What came of the oldest step that is pending; waits for it."""
        assert pending is self._pending[0]
        pending.wait()
        self._pending.popleft()
        self._progress()
        scheduled, void = pending.scheduled, pending.void
        failed = pending.failed & ~void
        drawn = scheduled.samples & ~void & ~failed
        indices = scheduled.starts + scheduled.counts
        outcomes = LaneOutcomes(scheduled.lanes, pending.generations, indices, pending.token_ids, drawn, failed)
        ended = self._lanes.settle(pending.step, outcomes)
        for later in self._pending:
            later.void[np.isin(later.scheduled.lanes, ended)] = True
        logprobs = self._equally_likely(pending.token_rows.num_top)
        prompt_logprobs = self._equally_likely(pending.prompt_rows.num_top)
        return StepResult(
            step_id=pending.step.step_id,
            lanes=scheduled.lanes[drawn].astype(np.uint32),
            generations=pending.generations[drawn],
            token_ids=pending.token_ids[drawn].astype(np.uint32),
            digest=self._lanes.digest,
            logprobs=pending.token_rows.report(logprobs, scheduled.lanes[scheduled.samples], drawn[scheduled.samples]),
            prompt_logprobs=pending.prompt_rows.report(prompt_logprobs, scheduled.lanes[void]),
            lane_errors=_lane_errors(outcomes.only(failed)),
        )

    def reset(self) -> None:
        """Forget all lanes and pending steps."""
        self._pending.clear()
        self._lanes.clear()
        self._ready_at = 0.0

    def warm_up(self, share: int = 1) -> None:
        """Run a prefill, 1/`share` of the longest, and a decode: what a step takes is known. Without lanes."""
        for step in warm_up_steps(self._limits, self._groups, share):
            check_warm_up(self.execute(step))
        self.reset()

    def rehearse(self, share: int = 1) -> None:
        """The same."""
        self.warm_up(share)

    def _draw(self, lanes: Ints, rows: SamplingRows) -> tuple[Ints, Bools]:
        """A token for each of `lanes`, and whether there is none."""
        numbers = _hash(rows.columns.seed, rows.indices)
        token_ids = (numbers % np.uint64(self._limits.vocab_size)).astype(np.int64)
        failed = np.zeros(len(lanes), dtype=np.bool_)
        ends = self._lanes.end_tokens(lanes)
        masks = dict(zip(rows.masks.rows.tolist(), rows.masks.allowed, strict=True))
        at_end = ends.rows[token_ids[ends.rows] == ends.token_ids]
        for row in {*masks, *at_end.tolist()}:
            allowed = np.arange(self._limits.vocab_size)
            if row in masks:
                allowed = np.flatnonzero(np.unpackbits(masks[row], count=self._limits.vocab_size, bitorder="little"))
            left = np.setdiff1d(allowed, ends.token_ids[ends.rows == row])
            if not len(left):
                left = np.setdiff1d(allowed, rows.banned.token_ids[rows.banned.rows == row])
            failed[row] = not len(left)
            token_ids[row] = left[int(numbers[row]) % len(left)] if len(left) else 0
        return token_ids, failed

    def _equally_likely(self, num_top: Ints) -> RowLogprobs:
        """Of as many rows; the alternatives are the lowest token ids."""
        count = int(num_top.max(initial=0))
        logprob = -math.log(self._limits.vocab_size)
        return RowLogprobs(
            chosen=torch.full((len(num_top),), logprob),
            top_token_ids=torch.arange(count).expand(len(num_top), count),
            top_logprobs=torch.full((len(num_top), count), logprob),
        )


def _hash(seeds: npt.NDArray[np.uint64], indices: Ints) -> npt.NDArray[np.uint64]:
    """SplitMix64 of sequence and index."""
    numbers = seeds * np.uint64(0xD1342543DE82EF95) + indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed


def _lane_errors(failed: LaneOutcomes) -> Sequence[LaneError]:
    columns = (failed.lanes, failed.generations, failed.indices)
    return [
        LaneError(lane, generation, _NOTHING_TO_DRAW.format(index), nothing_to_draw=True)
        for lane, generation, index in zip(*(column.tolist() for column in columns), strict=True)
    ]
