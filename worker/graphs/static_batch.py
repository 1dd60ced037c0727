"""A batch whose tensors stay where they are."""

import numpy as np
import torch

from worker.cache.kv_cache import KVCache
from worker.graphs.shapes import GraphShape
from worker.lanes.batch import Batch, BatchColumns
from worker.transfers import to_device


class StaticBatch:
    """Buffers for decode steps of one shape: N rows, each of them its sequence's only one, and N wanted rows.

    Rows beyond those loaded are padding: token 0 at position 0 of no sequence, written to a scratch slot; row 0 is wanted once more for
    each that is not. At first all rows are padding.

        columns [3 + groups, N]:  token ids | positions | wanted rows | slots of each cache group
    """

    def __init__(self, shape: GraphShape, cache: KVCache) -> None:
        device = cache.keys[0].device
        self._padding = np.zeros((3 + len(cache.groups), shape.rows), dtype=np.int64)
        self._padding[3:] = np.array(cache.scratch_slots)[:, None]
        self._columns = torch.from_numpy(self._padding).to(device, copy=True)
        self.batch = Batch(
            token_ids=self._columns[0],
            positions=self._columns[1],
            slots=tuple(self._columns[3:]),
            page_tables=tuple(
                torch.full((shape.rows, -(-shape.max_tokens // group.page_tokens)), -1, dtype=torch.int32, device=device)
                for group in cache.groups
            ),
            query_starts=torch.zeros(shape.rows + 1, dtype=torch.int32, device=device),
            logit_rows=self._columns[2],
        )

    def load(self, columns: BatchColumns) -> None:
        """Put a decode step that fits into the buffers, behind what was launched over them."""
        num_rows, device = len(columns.token_ids), self._columns.device
        packed = self._padding.copy()
        for line, column in zip(packed, (columns.token_ids, columns.positions, columns.logit_rows, *columns.slots), strict=True):
            line[: len(column)] = column
        self._columns.copy_(to_device(packed, device))
        if columns.unread is not None:
            columns.unread.put(self.batch.token_ids)
        starts = np.arange(len(self.batch.query_starts), dtype=np.int32)
        self.batch.query_starts.copy_(to_device(np.minimum(starts, num_rows), device))
        for buffer, table in zip(self.batch.page_tables, columns.page_tables, strict=True):
            buffer.fill_(-1)
            buffer[:num_rows, : table.shape[1]].copy_(to_device(table, device))
