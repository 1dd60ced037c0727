"""Log probabilities of tokens, from the unmodified logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pypto_serving.wire.columns import Floats, Ids
from worker.lanes.lane_table import LaneTable
from worker.lanes.step_rules import Bools, Ints, Run
from worker.sampling.ranking import top
from worker.sampling.sampling_rows import SamplingColumns
from worker.step import PromptTokenLogprobs, TokenLogprobs
from worker.transfers import to_device

#: Reported in place of anything smaller, minus infinity among it.
FLOOR = -9999.0

_BLOCK_ROWS = 64  # bounds the memory that logits and log_softmax take, in rows of the vocabulary

#: Logits [last - first, vocab] of the wanted rows from `first` up to `last`.
LogitsOf = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log probabilities of some rows of logits, where the logits are or copied to the host."""

    chosen: Tensor  # [rows] float32: of the token that was or will be there
    top_token_ids: Tensor  # [rows, alternatives] int64, best first, equal ones by rising token id
    top_logprobs: Tensor  # [rows, alternatives] float32

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of it, in the order of the fields."""
        return self.chosen, self.top_token_ids, self.top_logprobs


#: Nobody asks.
NOTHING_TOLD = RowLogprobs(torch.empty(0), torch.empty(0, 0, dtype=torch.int64), torch.empty(0, 0))


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The sampled rows that get told about their tokens."""

    rows: Ints  # indices into the sampled rows
    num_top: Ints  # for each of them, how many alternatives

    @classmethod
    def of(cls, columns: SamplingColumns) -> "TokenRows":
        """The rows that want to know."""
        rows = np.flatnonzero(columns.logprobs)
        return cls(rows, columns.top_logprobs[rows])

    def compute(self, logits: Tensor, token_ids: Tensor) -> RowLogprobs:
        """Of the drawn `token_ids` [sampled rows], from their `logits`."""
        if not len(self.rows):
            return NOTHING_TOLD
        wanted = to_device(self.rows, logits.device)
        return row_logprobs(lambda first, last: logits[wanted[first:last]], token_ids[wanted], int(self.num_top.max()))

    def report(self, told: RowLogprobs, lanes: Ints, kept: Bools) -> Sequence[TokenLogprobs]:
        """What is told, on the host, by lane: sampled row i is `lanes[i]`, and is left out unless `kept`."""
        chosen, top_token_ids, top_logprobs = _on_host(told)
        return [
            TokenLogprobs(int(lanes[row]), float(chosen[place]), top_token_ids[place, :count], top_logprobs[place, :count])
            for place, (row, count) in enumerate(zip(self.rows.tolist(), self.num_top.tolist(), strict=True))
            if kept[row]
        ]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The token rows of a run whose logits tell about prompt tokens.

    The logits at index i tell about token i + 1. So a chunk from index a up to b tells about prompt tokens a + 1 to b, and a lane that is
    admitted with c computed tokens never tells about tokens 1 to c: whoever wants those must not admit it with so many.
    """

    rows: Ints  # indices into the token rows of the run
    lanes: Ints  # for each of them, its lane; rows of a lane are neighbours
    generations: Ints
    num_top: Ints  # for each of them, how many alternatives
    targets: Ints  # for each of them, the prompt token that it tells about
    first_indices: Ints  # for each of them, the index of that token in the prompt

    @classmethod
    def of(cls, run: Run, lanes: LaneTable) -> "PromptRows":
        """The rows that lanes of `run` want to know about."""
        rows = np.flatnonzero(lanes.reports_prompt(run))
        row_lanes, indices = run.lanes[run.row_sequences[rows]], run.positions[rows] + 1
        num_top = lanes.sampling_columns(row_lanes).prompt_logprobs
        return cls(rows, row_lanes, lanes.generations[row_lanes], num_top, lanes.token_ids(row_lanes, indices), indices)

    def compute(self, logits_of: LogitsOf, device: torch.device) -> RowLogprobs:
        """Of the prompt tokens; row i of the logits is row i of these."""
        return row_logprobs(logits_of, to_device(self.targets, device), int(self.num_top.max())) if len(self.rows) else NOTHING_TOLD

    def report(self, told: RowLogprobs, left_out: Ints) -> Sequence[PromptTokenLogprobs]:
        """What is told, on the host, lane by lane, some lanes left out."""
        chosen, top_token_ids, top_logprobs = _on_host(told)
        reports = []
        for lane in np.setdiff1d(self.lanes, left_out).tolist():
            mine = self.lanes == lane
            first = int(mine.argmax())
            count = self.num_top[first]
            reports.append(
                PromptTokenLogprobs(
                    lane=lane,
                    generation=int(self.generations[first]),
                    first_index=int(self.first_indices[first]),
                    logprobs=chosen[mine],
                    top_token_ids=top_token_ids[mine, :count].ravel(),
                    top_logprobs=top_logprobs[mine, :count].ravel(),
                )
            )
        return reports


def row_logprobs(logits_of: LogitsOf, token_ids: Tensor, num_top: int) -> RowLogprobs:
    """Log probabilities of `token_ids` [rows] and of the `num_top` best tokens of each row; asks for the logits of few rows at a time."""
    bounds = [(start, min(start + _BLOCK_ROWS, len(token_ids))) for start in range(0, len(token_ids), _BLOCK_ROWS)]
    blocks = [_block_logprobs(logits_of(first, last), token_ids[first:last], num_top) for first, last in bounds]
    chosen, top_values, top_ids = (torch.cat(column) for column in zip(*blocks, strict=True))
    return RowLogprobs(chosen, top_ids, top_values)


def _block_logprobs(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    logprobs = logits.log_softmax(dim=-1, dtype=torch.float32).nan_to_num(nan=FLOOR).clamp(min=FLOOR)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), *top(logprobs, num_top)


def _on_host(told: RowLogprobs) -> tuple[Floats, Ids, Floats]:
    return told.chosen.numpy(), told.top_token_ids.numpy().astype(np.uint32), told.top_logprobs.numpy()
