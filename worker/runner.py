"""Executes steps: one forward over the lanes that run, then one token for each lane that samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pypto_serving.wire.columns import Ids
from pypto_serving.wire.generations import Generations
from worker.cache.kv_cache import KVCache
from worker.graphs.decode_graphs import DecodeGraphs
from worker.lanes.batch import Batch, BatchBuilder, BatchColumns, Hidden
from worker.lanes.lane_table import LaneTable
from worker.lanes.step_rules import Ints, Run
from worker.limits import RunnerLimits
from worker.sampling.logprobs import PromptRows, report_prompt, report_tokens
from worker.sampling.sampler import SampledTokens, sample
from worker.sampling.sampling_rows import SamplingRows
from worker.step import LaneError, StepInput, StepOutput
from worker.warm_up import check_warm_up, warm_up_steps

_NOTHING_TO_DRAW = "no token can be drawn at index {}: mask and minimum length exclude all of them"
_NOT_FINITE = "no token can be drawn at index {}: the logits are not finite"
_STATE_NOT_FINITE = "the model can not go on from the token at index {}: its hidden state behind the last layer is not finite"

_NO_IDS: Ids = np.empty(0, dtype=np.uint32)
_NO_GENERATIONS: Generations = np.empty(0, dtype=np.int64)


class ForwardModel(Protocol):
    """What a runner needs of a model."""

    def forward(self, batch: Batch, cache: KVCache) -> Hidden:
        """Write the batch's keys and values to the cache; returns the wanted rows, and which rows were finite."""

    def logits(self, rows: Tensor) -> Tensor:
        """Float32 logits [n, vocab] of some wanted rows [n, hidden]."""


class ModelRunner:
    """The model, its cache and the lanes. Everything here runs on the one thread that owns the device.

    Steps that only decode replay one of `graphs`, where there are any; a step with a chunk of a prompt launches every kernel by itself.
    """

    def __init__(self, model: ForwardModel, cache: KVCache, limits: RunnerLimits, graphs: DecodeGraphs | None = None) -> None:
        self._model = model
        self._cache = cache
        self._limits = limits
        self._graphs = graphs
        self._lanes = LaneTable(limits, cache.groups)
        self._batches = BatchBuilder(cache.keys[0].device)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepOutput:
        """Apply `step`, compute and sample.

        Raises InvalidStep before any effect when the step breaks a rule. After any other exception only `reset` may follow.
        """
        run = self._lanes.apply(step)
        if not len(run.lanes):
            return StepOutput(step.step_id, _NO_IDS, _NO_GENERATIONS, _NO_IDS, self._lanes.digest)
        prompt = PromptRows.of(run, self._lanes)
        wanted, finite = self._forward(BatchColumns.of(run, self._lanes, prompt.rows))
        self._lanes.advance(run)
        lanes = run.lanes[run.samples]
        rows = self._lanes.sampling_rows(lanes, step.masks)
        logits = self._model.logits(wanted[: len(lanes)])
        sampled = sample(logits, rows)
        spoiled = run.first_positions(~finite.cpu().numpy())
        sampled = replace(sampled, failed=sampled.failed | (spoiled >= 0)[run.samples])
        self._lanes.append(lanes[~sampled.failed], sampled.token_ids[~sampled.failed])
        self._lanes.end(np.concatenate([lanes[sampled.failed], run.lanes[spoiled >= 0]]))
        return StepOutput(
            step_id=step.step_id,
            lanes=lanes[~sampled.failed].astype(np.uint32),
            generations=self._lanes.generations[lanes[~sampled.failed]],
            token_ids=sampled.token_ids[~sampled.failed].astype(np.uint32),
            digest=self._lanes.digest,
            logprobs=report_tokens(logits, lanes, sampled, rows.columns),
            prompt_logprobs=report_prompt(
                lambda first, last: self._model.logits(wanted[len(lanes) + first : len(lanes) + last]), prompt, run, self._lanes
            ),
            lane_errors=self._lane_errors(run, spoiled, sampled, rows),
        )

    def _forward(self, columns: BatchColumns) -> Hidden:
        replayed = self._graphs.forward(columns) if self._graphs is not None else None
        return self._model.forward(self._batches.build(columns), self._cache) if replayed is None else replayed

    def _lane_errors(self, run: Run, spoiled: Ints, sampled: SampledTokens, rows: SamplingRows) -> Sequence[LaneError]:
        """One for each lane of `run` with a hidden state that is not finite, at index `spoiled` (-1: none), or with nothing drawn."""
        not_drawn = sampled.failed & (spoiled[run.samples] < 0)
        columns = (run.lanes[run.samples], rows.indices, sampled.excluded)
        failed = [
            (lane, (_NOTHING_TO_DRAW if excluded else _NOT_FINITE).format(index), excluded)
            for lane, index, excluded in zip(*(column[not_drawn].tolist() for column in columns), strict=True)
        ]
        at = np.flatnonzero(spoiled >= 0)
        indices = zip(run.lanes[at].tolist(), spoiled[at].tolist(), strict=True)
        broken = [(lane, _STATE_NOT_FINITE.format(index), False) for lane, index in indices]
        return [LaneError(lane, int(self._lanes.generations[lane]), message, excluded) for lane, message, excluded in broken + failed]

    def reset(self) -> None:
        """Forget all lanes. The cache is left as it is: nothing points into it any more."""
        self._lanes.clear()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture the graphs, and run a prefill, a decode and the sampler once: the first request finds everything loaded. Without lanes.

        Raises RuntimeError when the model does not produce a token.
        """
        if self._graphs is not None:
            self._graphs.capture()
        self.rehearse()

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run the longest prefill, a decode and the sampler once more; otherwise as `warm_up`."""
        for step in warm_up_steps(self._limits, self._cache.groups):
            check_warm_up(self.execute(step))
        self.reset()
