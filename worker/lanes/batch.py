"""A packed batch: prefill chunks and decodes of many sequences side by side, as columns on the host and as tensors on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.lanes.lane_table import LaneTable
from worker.lanes.step_rules import Ints, Run
from worker.lanes.unread_tokens import UnreadTokens
from worker.transfers import to_device


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """T token rows of B sequences, S of which want logits, without padding."""

    token_ids: Ints  # [T]; those of rows in `unread` mean nothing
    positions: Ints  # [T]: index of the token in its sequence
    slots: tuple[Ints, ...]  # per cache group [T]: page * page_tokens + offset
    page_tables: tuple[npt.NDArray[np.int32], ...]  # per cache group [B, P], as far as the rows reach; -1 where there is no page any more
    row_ends: Ints  # [B]: the row after the last of each sequence
    logit_rows: Ints  # [S], indices into T
    max_tokens: int  # of a sequence, these rows among them
    unread: UnreadTokens | None = None

    @classmethod
    def of(cls, run: Run, lanes: LaneTable, prompt_rows: Ints) -> "BatchColumns":
        """Those of `run`, which is not empty; wanted are the logits of the rows that sample, in order, and then of `prompt_rows`."""
        row_lanes = run.lanes[run.row_sequences]
        max_tokens = int((run.starts + run.counts).max())
        groups = range(lanes.pages.num_groups)
        return cls(
            token_ids=lanes.token_ids(row_lanes, run.positions),
            positions=run.positions,
            slots=tuple(lanes.pages.slots(group, row_lanes, run.positions) for group in groups),
            page_tables=tuple(lanes.pages.gather(group, run.lanes, max_tokens) for group in groups),
            row_ends=run.row_ends,
            logit_rows=np.concatenate([run.row_ends[run.samples] - 1, prompt_rows]),
            max_tokens=max_tokens,
            unread=lanes.unread(row_lanes, run.positions),
        )

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one row."""
        return len(self.row_ends) == len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model's forward runs: T token rows of B sequences, S of which want logits.

    Rows of sequence b are query_starts[b]:query_starts[b+1]; sequences at the end may have none. Padding rows, which only captured shapes
    have, come last, belong to no sequence and write to scratch slots.
    """

    token_ids: Tensor  # [T] int64; 0 in padding rows
    positions: Tensor  # [T] int64; index of the token in its sequence, 0 in padding rows
    slots: tuple[Tensor, ...]  # per cache group [T] int64: page * page_tokens + offset
    page_tables: tuple[Tensor, ...]  # per cache group [B, P] int32, padded with -1; entries that left a window are -1 too
    query_starts: Tensor  # [B + 1] int32
    logit_rows: Tensor  # [S] int64, indices into T


class Hidden(NamedTuple):
    """What a model's forward leaves of a batch."""

    wanted: Tensor  # [S, hidden]: the wanted rows as the head takes them
    finite: Tensor  # [T] bool: whether all of a row was finite behind the last layer; those of padding rows mean nothing


class BatchBuilder:
    """Sends columns to `device` as a batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def build(self, columns: BatchColumns) -> Batch:
        """The batch, without padding."""
        token_ids = to_device(columns.token_ids, self._device)
        if columns.unread is not None:
            columns.unread.put(token_ids)
        return Batch(
            token_ids=token_ids,
            positions=to_device(columns.positions, self._device),
            slots=tuple(to_device(slots, self._device) for slots in columns.slots),
            page_tables=tuple(to_device(table, self._device) for table in columns.page_tables),
            query_starts=to_device(np.concatenate([[0], columns.row_ends]).astype(np.int32), self._device),
            logit_rows=to_device(columns.logit_rows, self._device),
        )
