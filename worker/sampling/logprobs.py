"""Log probabilities of tokens, from the unmodified logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pypto_serving.wire.columns import Floats, Ids
from worker.lanes.lane_table import LaneTable
from worker.lanes.step_rules import Ints, Run
from worker.sampling.ranking import top
from worker.sampling.sampler import SampledTokens
from worker.sampling.sampling_rows import SamplingColumns
from worker.step import PromptTokenLogprobs, TokenLogprobs

#: Reported in place of anything smaller, minus infinity among it.
FLOOR = -9999.0

_BLOCK_ROWS = 64  # bounds the memory that logits and log_softmax take, in rows of the vocabulary

#: Logits [last - first, vocab] of the wanted rows from `first` up to `last`.
LogitsOf = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log probabilities of some rows of logits."""

    chosen: Floats  # [rows]: of the token that was or will be there
    top_token_ids: Ids  # [rows, alternatives], best first, equal ones by rising token id
    top_logprobs: Floats  # [rows, alternatives]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The token rows of a run whose logits tell about prompt tokens.

    The logits at index i tell about token i + 1. So a chunk from index a up to b tells about prompt tokens a + 1 to b, and a lane that is
    admitted with c computed tokens never tells about tokens 1 to c: whoever wants those must not admit it with so many.
    """

    rows: Ints  # indices into the token rows of the run
    sequences: Ints  # for each of them, the index of its lane in the run
    targets: Ints  # for each of them, the prompt token that it tells about
    first_indices: Ints  # for each of them, the index of that token in the prompt

    @classmethod
    def of(cls, run: Run, lanes: LaneTable) -> "PromptRows":
        """The rows that lanes of `run` want to know about."""
        rows = np.flatnonzero(lanes.reports_prompt(run))
        sequences, indices = run.row_sequences[rows], run.positions[rows] + 1
        return cls(rows, sequences, lanes.token_ids(run.lanes[sequences], indices), indices)


def row_logprobs(logits_of: LogitsOf, token_ids: Ints, num_top: int) -> RowLogprobs:
    """Log probabilities of `token_ids` [rows] and of the `num_top` best tokens of each row; asks for the logits of few rows at a time."""
    bounds = [(start, min(start + _BLOCK_ROWS, len(token_ids))) for start in range(0, len(token_ids), _BLOCK_ROWS)]
    blocks = [_block_logprobs(logits_of(first, last), torch.from_numpy(token_ids[first:last]), num_top) for first, last in bounds]
    chosen, top_values, top_ids = (torch.cat(column).cpu().numpy() for column in zip(*blocks, strict=True))
    return RowLogprobs(chosen, top_ids.astype(np.uint32), top_values)


def _block_logprobs(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = logits.log_softmax(dim=-1, dtype=torch.float32).nan_to_num(nan=FLOOR).clamp(min=FLOOR)
    return logprobs.gather(-1, targets.to(logits.device)[:, None]).squeeze(-1), *top(logprobs, num_top)


def report_tokens(logits: Tensor, lanes: Ints, sampled: SampledTokens, columns: SamplingColumns) -> Sequence[TokenLogprobs]:
    """What the lanes that want it get told about the tokens they drew; row i of `logits` is lane `lanes[i]`."""
    rows = np.flatnonzero(columns.logprobs & ~sampled.failed)
    if not len(rows):
        return ()
    counts = columns.top_logprobs[rows]
    wanted = torch.from_numpy(rows).to(logits.device)
    told = row_logprobs(lambda first, last: logits[wanted[first:last]], sampled.token_ids[rows], int(counts.max()))
    return [
        TokenLogprobs(lane, float(told.chosen[row]), told.top_token_ids[row, :count], told.top_logprobs[row, :count])
        for row, (lane, count) in enumerate(zip(lanes[rows].tolist(), counts.tolist(), strict=True))
    ]


def report_prompt(logits_of: LogitsOf, prompt: PromptRows, run: Run, lanes: LaneTable) -> Sequence[PromptTokenLogprobs]:
    """What lanes get told about their prompts; row i of the logits is row i of `prompt`."""
    if not len(prompt.rows):
        return ()
    counts = lanes.sampling_columns(run.lanes).prompt_logprobs
    told = row_logprobs(logits_of, prompt.targets, int(counts.max()))
    reports = []
    for sequence in np.unique(prompt.sequences).tolist():
        mine, count, lane = prompt.sequences == sequence, counts[sequence], int(run.lanes[sequence])
        reports.append(
            PromptTokenLogprobs(
                lane=lane,
                generation=int(lanes.generations[lane]),
                first_index=int(prompt.first_indices[mine][0]),
                logprobs=told.chosen[mine],
                top_token_ids=told.top_token_ids[mine, :count].ravel(),
                top_logprobs=told.top_logprobs[mine, :count].ravel(),
            )
        )
    return reports
