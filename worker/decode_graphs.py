"""Decode steps as graphs: the forward of each of a few fixed shapes is captured once, then replayed over buffers that stay in place."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kernels import ops
from worker.batch import Batch, BatchColumns, Hidden
from worker.kv_cache import KVCache
from worker.step import RunnerLimits
from worker.transfers import to_device

_LEAST_ROWS = 8
_LEAST_TOKENS = 512
_TOKENS_FACTOR = 4
# Where rows meet more keys than this, the kernels of a layer take longer than their launches: a replay would gain nothing.
_MAX_KEYS = 1 << 17


@dataclass(frozen=True, slots=True, order=True)
class GraphShape:
    """What a captured forward has room for."""

    rows: int
    max_tokens: int  # of a sequence


def graph_shapes(limits: RunnerLimits, attention_follows_lengths: bool) -> tuple[GraphShape, ...]:
    """The shapes that a runner captures, smallest first.

    Rows go by doubling up to what a step may have. PyPTO's attention walks the keys that a sequence has: one width of page tables, the
    greatest, costs no time, and memory within kernels.scratch. The torch implementation meets every key that a page table has room for:
    there are a few widths, and long sequences in great numbers run without a graph.
    """
    if attention_follows_lengths:
        return tuple(GraphShape(rows, limits.max_model_len) for rows in _row_counts(limits))
    token_counts = [*_growing(_LEAST_TOKENS, _TOKENS_FACTOR, limits.max_model_len), limits.max_model_len]
    shapes = [GraphShape(rows, tokens) for rows in _row_counts(limits) for tokens in token_counts]
    return tuple(shape for shape in shapes if shape.rows * shape.max_tokens <= _MAX_KEYS)


def _row_counts(limits: RunnerLimits) -> list[int]:
    most = min(limits.max_lanes, limits.max_step_tokens)
    most += -most % _LEAST_ROWS
    return [*_growing(_LEAST_ROWS, 2, most), most]


def _growing(first: int, factor: int, limit: int) -> list[int]:
    counts = []
    while first < limit:
        counts.append(first)
        first *= factor
    return counts


class StaticBatch:
    """Buffers for decode steps of one shape: N rows, each of them its sequence's only one, and N wanted rows.

    Rows beyond those loaded are padding: token 0 at position 0 of no sequence, written to a scratch slot; row 0 is wanted once more for
    each that is not. At first all rows are padding.

        columns [4 + groups, N]:  token ids | positions | last keys | wanted rows | slots of each cache group
    """

    def __init__(self, shape: GraphShape, cache: KVCache) -> None:
        device = cache.keys[0].device
        self._padding = np.zeros((4 + len(cache.groups), shape.rows), dtype=np.int64)
        self._padding[2] = -1
        self._padding[4:] = np.array(cache.scratch_slots)[:, None]
        self._columns = torch.from_numpy(self._padding).to(device, ops.index_dtype(device.type), copy=True)
        self.batch = Batch(
            token_ids=self._columns[0],
            positions=self._columns[1],
            last_keys=self._columns[2],
            slots=tuple(self._columns[4:]),
            page_tables=tuple(
                torch.full((shape.rows, -(-shape.max_tokens // group.page_tokens)), -1, dtype=torch.int32, device=device)
                for group in cache.groups
            ),
            query_starts=torch.zeros(shape.rows + 1, dtype=torch.int32, device=device),
            logit_rows=self._columns[3],
        )

    def load(self, columns: BatchColumns) -> None:
        """Put a decode step that fits into the buffers, behind what was launched over them."""
        num_rows, device = len(columns.token_ids), self._columns.device
        packed = self._padding.copy()
        loaded = (columns.token_ids, columns.positions, columns.positions, columns.logit_rows, *columns.slots)
        for line, column in zip(packed, loaded, strict=True):
            line[: len(column)] = column
        self._columns.copy_(to_device(packed, device, self._columns.dtype))
        if columns.unread is not None:
            columns.unread.put(self.batch.token_ids)
        starts = np.arange(len(self.batch.query_starts), dtype=np.int32)
        self.batch.query_starts.copy_(to_device(np.minimum(starts, num_rows), device))
        for buffer, table in zip(self.batch.page_tables, columns.page_tables, strict=True):
            buffer.fill_(-1)
            buffer[:num_rows, : table.shape[1]].copy_(to_device(table, device))


_log = logging.getLogger(__name__)

#: Runs a launch once to load what it needs, records it, and returns what replays it: a call that always returns the same tensors.
Capture = Callable[[Callable[[], Hidden]], Callable[[], Hidden]]

#: A model's forward that does not synchronize with the host.
Forward = Callable[[Batch, KVCache], Hidden]


@dataclass(frozen=True, slots=True)
class _Graph:
    shape: GraphShape
    static: StaticBatch
    replay: Callable[[], Hidden]

    def fits(self, columns: BatchColumns) -> bool:
        return len(columns.token_ids) <= self.shape.rows and columns.max_tokens <= self.shape.max_tokens


class DecodeGraphs:
    """One graph for each of some shapes, given smallest first."""

    def __init__(self, forward: Forward, cache: KVCache, shapes: Sequence[GraphShape], capture: Capture) -> None:
        self._forward = forward
        self._cache = cache
        self._shapes = shapes
        self._capture = capture
        self._graphs: list[_Graph] = []

    def capture(self) -> None:
        """Capture all shapes, the largest first: what it needs of the graphs' common memory serves the others.

        Raises RuntimeError naming the shape that cannot be captured.
        """
        for shape in reversed(self._shapes):
            begin = time.monotonic()
            try:
                static = StaticBatch(shape, self._cache)
                self._graphs.insert(0, _Graph(shape, static, self._capture(partial(self._forward, static.batch, self._cache))))
            except RuntimeError as error:
                room = f"{shape.rows} rows and {shape.max_tokens} tokens"
                raise RuntimeError(f"a graph for {room} cannot be captured (--eager does without): {error}") from error
            seconds = round(time.monotonic() - begin, 2)
            _log.info("captured", extra={"rows": shape.rows, "max_tokens": shape.max_tokens, "seconds": seconds})

    def forward(self, columns: BatchColumns) -> Hidden | None:
        """The rows of a decode step that a graph has room for, padded, until the next call; None for all other steps."""
        graph = next((graph for graph in self._graphs if graph.fits(columns)), None) if columns.is_decode else None
        if graph is None:
            return None
        graph.static.load(columns)
        return graph.replay()
