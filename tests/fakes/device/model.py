"""Models without weights: their logits are a pure function of what the cache says a sequence is."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from worker.batch import Batch, Hidden
from worker.kv_cache import CacheGroupSpec, KVCache, allocate_cache
from worker.step import RunnerLimits

Logits = Callable[[Sequence[int]], np.ndarray]

UNWRITTEN = -1


def token_cache(num_pages: int = 64, page_tokens: int = 4, windows: Sequence[int | None] = (None,), num_partitions: int = 1) -> KVCache:
    """A cache whose keys are token ids and whose values are positions; slots never written hold -1."""
    specs = [CacheGroupSpec(f"group{i}", (i,), page_tokens, 1, 1, torch.int64, window) for i, window in enumerate(windows)]
    cache = allocate_cache(specs, [num_pages] * len(specs), num_partitions, torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(UNWRITTEN)
    return cache


def limits(vocab_size: int = 97, **overrides: int) -> RunnerLimits:
    """Small limits."""
    return RunnerLimits(**{"vocab_size": vocab_size, "max_model_len": 64, "max_lanes": 8, "max_step_tokens": 64, **overrides})


def hashed_logits(vocab_size: int = 97) -> Logits:
    """Every sequence has logits of its own."""
    return lambda token_ids: np.random.default_rng(list(token_ids)).normal(size=vocab_size).astype(np.float32) * 3


def constant_logits(values: Sequence[float]) -> Logits:
    """The same logits everywhere."""
    return lambda token_ids: np.array(values, dtype=np.float32)


def scripted_logits(next_token: Callable[[int], int], vocab_size: int = 97) -> Logits:
    """Greedy decoding gives `next_token(number of tokens before it)`."""
    return lambda token_ids: np.eye(vocab_size, dtype=np.float32)[next_token(len(token_ids))]


class FakeModel:
    """Writes token ids to the cache, reads every sequence back through its page tables, and asks `logits` about it.

    Reading a page that is gone, a slot that was never written, or a token of another position is an error. With a second cache group,
    which has to have a window, the window is read and compared too.
    """

    def __init__(self, logits: Logits, unsound_token: int = -1) -> None:
        self._logits = logits
        self._unsound_token = unsound_token  # its hidden states are not finite
        self.batches: list[Batch] = []
        self.head_rows: list[int] = []  # sizes of the calls of `logits`

    def forward(self, batch: Batch, cache: KVCache) -> Hidden:
        """The wanted rows, which are their logits."""
        self.batches.append(batch)
        for group, slots in enumerate(batch.slots):
            cache.keys[group].view(-1)[slots] = batch.token_ids
            cache.values[group].view(-1)[slots] = batch.positions
        rows = [self._logits(self._read_sequence(batch, cache, row)) for row in batch.logit_rows.tolist()]
        return Hidden(torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, 0), batch.token_ids != self._unsound_token)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of some of them."""
        self.head_rows.append(len(rows))
        return rows

    def _read_sequence(self, batch: Batch, cache: KVCache, row: int) -> list[int]:
        sequence = int(torch.searchsorted(batch.query_starts, torch.tensor(row, dtype=torch.int32), right=True)) - 1
        end = int(batch.positions[row]) + 1
        token_ids = [_read(batch, cache, group, sequence, end) for group in range(len(cache.groups))]
        assert all(token_ids[0][-len(other) :] == other for other in token_ids)
        return token_ids[0]


def _read(batch: Batch, cache: KVCache, group: int, sequence: int, end: int) -> list[int]:
    spec = cache.groups[group]
    positions = torch.arange(max(0, end - (spec.window_tokens or end)), end)
    pages = batch.page_tables[group][sequence, positions // spec.page_tokens].long()
    assert (pages >= 0).all(), "a page is gone"
    slots = pages * spec.page_tokens + positions % spec.page_tokens
    assert torch.equal(cache.values[group].view(-1)[slots], positions), "a slot holds another position"
    token_ids: list[int] = cache.keys[group].view(-1)[slots].tolist()
    return token_ids
