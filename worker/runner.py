"""Executes steps: one forward over the lanes that run, then one token for each lane that samples."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from worker.batch import BatchBuilder, BatchColumns, Hidden, ScheduledLanes
from worker.decode_graphs import DecodeGraphs
from worker.kv_cache import KVCache
from worker.lanes.lane_table import LaneOutcomes, LaneTable
from worker.models.model import ForwardModel
from worker.sampling.logprobs import PromptRows, RowLogprobs, TokenRows
from worker.sampling.sampler import SampledTokens, sample
from worker.step import Bools, Ints, LaneError, RunnerLimits, Step, StepResult
from worker.transfers import CopyToHost, HostCopies, stay_on_host
from worker.warm_up import check_warm_up, warm_up_steps

_NOTHING_TO_DRAW = "no token can be drawn at index {}: mask and minimum length exclude all of them"
_NOT_FINITE = "no token can be drawn at index {}: the logits are not finite"
_STATE_NOT_FINITE = "the model cannot go on from the token at index {}: its hidden state behind the last layer is not finite"

_NOTHING = Hidden(torch.empty(0, 0), torch.empty(0, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that was launched, and whose results are on their way to the host."""

    step: Step
    scheduled: ScheduledLanes
    generations: Ints  # [B]: of the lanes that run
    void: Bools  # [B]: whether a lane ended with the step before: what it computed here does not count
    token_rows: TokenRows
    prompt_rows: PromptRows
    results: HostCopies  # Hidden.finite, SampledTokens, and RowLogprobs of tokens and of prompts

    @property
    def is_ready(self) -> bool:
        """Whether the results were there at once."""
        return self.results.wait is None

    def wait(self) -> None:
        """Wait until the results are there; any thread may."""
        if self.results.wait is not None:
            self.results.wait()


class ModelRunner:
    """The model, its cache and the lanes. Everything here runs on the one thread that owns the device.

    A step is launched, and collected when its results are on the host. On a device with its own stream one more may be launched in
    between, which is fed there with the tokens that the host has not read:

        host    launch 1 | launch 2 | collect 1 | launch 3 | collect 2 | ...
        device             1 ..................... 2 ................... 3 ...

    Steps that only decode replay one of `graphs`, where there are any; a step with a chunk of a prompt launches every kernel by itself.
    """

    def __init__(
        self,
        model: ForwardModel,
        cache: KVCache,
        limits: RunnerLimits,
        graphs: DecodeGraphs | None = None,
        copy_to_host: CopyToHost = stay_on_host,
    ) -> None:
        self._model = model
        self._cache = cache
        self._limits = limits
        self._graphs = graphs
        self._copy_to_host = copy_to_host
        self._device = cache.keys[0].device
        self._lanes = LaneTable(limits, cache.groups)
        self._batches = BatchBuilder(self._device)
        self._pending: deque[PendingStep] = deque()

    def execute(self, step: Step) -> StepResult:
        """Launch `step` and collect it."""
        return self.collect(self.launch(step))

    @torch.inference_mode()
    def launch(self, step: Step) -> PendingStep:
        """Apply `step`, compute and sample; at most one step before it may still be pending, and none that was ready at once.

        Raises InvalidStep before any effect when the step breaks a rule. After any other exception only `reset` may follow.
        """
        assert len(self._pending) <= 1 and not any(pending.is_ready for pending in self._pending)
        scheduled = self._lanes.apply(step)
        lanes, prompt_rows = scheduled.lanes[scheduled.samples], self._lanes.prompt_rows(scheduled)
        wanted, finite = self._forward(self._lanes.batch_columns(scheduled, prompt_rows.rows)) if len(scheduled.lanes) else _NOTHING
        rows = self._lanes.sampling_rows(lanes, step.masks)
        self._lanes.advance(scheduled)
        logits = self._model.logits(wanted[: len(lanes)]) if len(lanes) else _NOTHING.wanted
        sampled, token_rows = sample(logits, rows), TokenRows.of(rows.columns)
        logprobs = token_rows.compute(logits, sampled.token_ids)
        # The wanted rows last until the next launch only.
        prompt_logprobs = prompt_rows.compute(
            lambda first, last: self._model.logits(wanted[len(lanes) + first : len(lanes) + last]), self._device
        )
        pending = PendingStep(
            step=step,
            scheduled=scheduled,
            generations=self._lanes.generations[scheduled.lanes],
            void=np.zeros(len(scheduled.lanes), dtype=np.bool_),
            token_rows=token_rows,
            prompt_rows=prompt_rows,
            results=self._copy_to_host((finite, *sampled.tensors, *logprobs.tensors, *prompt_logprobs.tensors)),
        )
        if not pending.is_ready:
            self._lanes.leave_unread(lanes, sampled.token_ids)
        self._pending.append(pending)
        return pending

    def collect(self, pending: PendingStep) -> StepResult:
        """What came of the oldest step that is pending; waits for it. After an exception only `reset` may follow."""
        assert pending is self._pending[0]
        pending.wait()
        self._pending.popleft()
        scheduled, void, (finite, *tensors) = pending.scheduled, pending.void, pending.results.tensors
        sampled, logprobs, prompt_logprobs = SampledTokens(*tensors[:3]), RowLogprobs(*tensors[3:6]), RowLogprobs(*tensors[6:])
        bad_positions = np.where(void, -1, scheduled.first_positions(~finite.numpy()))
        drawn = scheduled.samples & ~void & (bad_positions < 0)
        not_drawn = drawn.copy()
        not_drawn[scheduled.samples] &= sampled.failed.numpy()
        drawn &= ~not_drawn
        token_ids = np.zeros(len(scheduled.lanes), dtype=np.int64)
        token_ids[scheduled.samples] = sampled.token_ids.numpy()
        outcomes = LaneOutcomes(
            scheduled.lanes, pending.generations, scheduled.starts + scheduled.counts, token_ids, drawn, not_drawn | (bad_positions >= 0)
        )
        ended = self._lanes.settle(pending.step, outcomes)
        for later in self._pending:
            later.void[np.isin(later.scheduled.lanes, ended)] = True
        excluded = not_drawn.copy()
        excluded[scheduled.samples] &= sampled.excluded.numpy()
        return StepResult(
            step_id=pending.step.step_id,
            lanes=scheduled.lanes[drawn].astype(np.uint32),
            generations=pending.generations[drawn],
            token_ids=token_ids[drawn].astype(np.uint32),
            digest=self._lanes.digest,
            logprobs=pending.token_rows.report(logprobs, scheduled.lanes[scheduled.samples], drawn[scheduled.samples]),
            prompt_logprobs=pending.prompt_rows.report(prompt_logprobs, scheduled.lanes[void]),
            lane_errors=_lane_errors(outcomes, bad_positions, excluded),
        )

    def _forward(self, columns: BatchColumns) -> Hidden:
        replayed = self._graphs.forward(columns) if self._graphs is not None else None
        return self._model.forward(self._batches.build(columns), self._cache) if replayed is None else replayed

    def reset(self) -> None:
        """Forget all lanes and pending steps. The cache is left as it is: nothing points into it any more."""
        self._pending.clear()
        self._lanes.clear()

    @torch.inference_mode()
    def warm_up(self, share: int = 1) -> None:
        """Capture the graphs, and run a prefill, a decode and the sampler once: the first request finds everything loaded. Without lanes.

        The prefill is 1/`share` of the longest that a step may have.

        Raises RuntimeError when the model does not produce a token.
        """
        if self._graphs is not None:
            self._graphs.capture()
        self.rehearse(share)

    @torch.inference_mode()
    def rehearse(self, share: int = 1) -> None:
        """Run the prefill, a decode and the sampler once more; otherwise as `warm_up`."""
        for step in warm_up_steps(self._limits, self._cache.groups, share):
            check_warm_up(self.execute(step))
        self.reset()


def _lane_errors(outcomes: LaneOutcomes, bad_positions: Ints, excluded: Bools) -> Sequence[LaneError]:
    """One for each lane that failed: at position `bad_positions` a hidden state is not finite, or (-1) nothing could be drawn."""
    columns = (outcomes.lanes, outcomes.generations, outcomes.indices, bad_positions, excluded)
    errors = []
    for lane, generation, index, at, none_left in zip(*(column[outcomes.failed].tolist() for column in columns), strict=True):
        not_drawn = (_NOTHING_TO_DRAW if none_left else _NOT_FINITE).format(index)
        errors.append(LaneError(lane, generation, _STATE_NOT_FINITE.format(at) if at >= 0 else not_drawn, none_left))
    return errors
