"""A packed batch: prefill chunks and decodes of many sequences side by side, as tensors on the device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.lanes.lane_table import LaneTable
from worker.lanes.step_rules import Ints, Run


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model's forward runs: T token rows of B sequences, S of which want logits.

    Rows of sequence b are query_starts[b]:query_starts[b+1]. T is a multiple of the model's row tile; padding rows come last, belong to
    no sequence and write to scratch slots. S is zero or a multiple of the row tile; padding repeats the first wanted row.
    """

    token_ids: Tensor  # [T] int64; 0 in padding rows
    positions: Tensor  # [T] int64; index of the token in its sequence, 0 in padding rows
    slots: tuple[Tensor, ...]  # per cache group [T] int64: page * page_tokens + offset
    page_tables: tuple[Tensor, ...]  # per cache group [B, P] int32, padded with -1; entries that left a window are -1 too
    query_starts: Tensor  # [B + 1] int32
    logit_rows: Tensor  # [S] int64, indices into T
    num_rows: int  # without padding
    num_logit_rows: int  # without padding


class BatchBuilder:
    """Turns a run into a batch on `device`; `scratch_slots[group]` is a slot that padding rows may write to."""

    def __init__(self, row_tile: int, scratch_slots: tuple[int, ...], device: torch.device) -> None:
        self._row_tile = row_tile
        self._scratch_slots = scratch_slots
        self._device = device

    def build(self, run: Run, lanes: LaneTable, prompt_rows: Ints) -> Batch:
        """The batch of `run`, which is not empty; wanted are the logits of the rows that sample, in order, and then of `prompt_rows`."""
        row_lanes = run.lanes[run.row_sequences]
        max_tokens = int((run.starts + run.counts).max())
        logit_rows = np.concatenate([run.row_ends[run.samples] - 1, prompt_rows])
        groups = range(len(self._scratch_slots))
        return Batch(
            token_ids=self._pad(lanes.token_ids(row_lanes, run.positions), 0),
            positions=self._pad(run.positions, 0),
            slots=tuple(self._pad(lanes.pages.slots(group, row_lanes, run.positions), self._scratch_slots[group]) for group in groups),
            page_tables=tuple(self._send(lanes.pages.gather(group, run.lanes, max_tokens)) for group in groups),
            query_starts=self._send(np.concatenate([[0], run.row_ends]).astype(np.int32)),
            logit_rows=self._pad(logit_rows, int(logit_rows[0]) if len(logit_rows) else 0),
            num_rows=len(row_lanes),
            num_logit_rows=len(logit_rows),
        )

    def _pad(self, column: Ints, value: int) -> Tensor:
        return self._send(np.concatenate([column, np.full(-len(column) % self._row_tile, value)]))

    def _send(self, array: npt.NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
