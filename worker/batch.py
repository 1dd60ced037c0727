"""The lanes that a step runs, and their packed batch: chunks of prompts and decodes side by side, as columns on the host and as tensors."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels import ops
from worker.step import Bools, Ints
from worker.transfers import to_device


@dataclass(frozen=True)
class ScheduledLanes:
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


@dataclass(frozen=True, slots=True)
class UnreadTokens:
    """Row `rows[i]` has token `token_ids[sources[i]]`, which only the device knows."""

    rows: Ints
    sources: Ints
    token_ids: Tensor  # int64, on the device

    def put(self, column: Tensor) -> None:
        """Write the tokens to their rows of `column`."""
        device = self.token_ids.device
        column[to_device(self.rows, device)] = self.token_ids[to_device(self.sources, device)].to(column.dtype)


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

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one row."""
        return len(self.row_ends) == len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model's forward runs: T token rows of B sequences, S of which want logits.

    Rows of sequence b are query_starts[b]:query_starts[b+1]; sequences at the end may have none. Padding rows, which only captured shapes
    have, come last, belong to no sequence and write to scratch slots. What steers kernels is computed on the host, as they take it: columns
    are of the device's ops.index_dtype where nothing else is said.
    """

    token_ids: Tensor  # [T]; 0 in padding rows
    positions: Tensor  # [T]: index of the token in its sequence, 0 in padding rows
    last_keys: Tensor  # [T]: position of the last key that the row sees, which is its own; -1 in padding rows, which see none
    slots: tuple[Tensor, ...]  # per cache group [T]: page * page_tokens + offset
    page_tables: tuple[Tensor, ...]  # per cache group [B, P] int32, padded with -1; entries that left a window are -1 too
    query_starts: Tensor  # [B + 1] int32
    logit_rows: Tensor  # [S], indices into T


class Hidden(NamedTuple):
    """What a model's forward leaves of a batch."""

    wanted: Tensor  # [S, hidden]: the wanted rows as the head takes them
    finite: Tensor  # [T] bool: whether all of a row was finite behind the last layer; those of padding rows mean nothing


class BatchBuilder:
    """Sends columns to `device` as a batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index_dtype = ops.index_dtype(device.type)

    def build(self, columns: BatchColumns) -> Batch:
        """The batch, without padding."""
        token_ids = self._indices(columns.token_ids)
        if columns.unread is not None:
            columns.unread.put(token_ids)
        positions = self._indices(columns.positions)
        return Batch(
            token_ids=token_ids,
            positions=positions,
            last_keys=positions,
            slots=tuple(self._indices(slots) for slots in columns.slots),
            page_tables=tuple(to_device(table, self._device) for table in columns.page_tables),
            query_starts=to_device(np.concatenate([[0], columns.row_ends]).astype(np.int32), self._device),
            logit_rows=self._indices(columns.logit_rows),
        )

    def _indices(self, column: Ints) -> Tensor:
        return to_device(column, self._device, self._index_dtype)
