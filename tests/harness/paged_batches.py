"""Drives a model executor in tests: sequences over scattered pages, and batches of any of their rows."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from worker.batch import Batch
from worker.models import Model


@dataclass
class PagedSequence:
    """Token ids, how many of them are computed, and one page table per cache group."""

    token_ids: list[int]
    page_tables: list[list[int]]
    num_computed_tokens: int = 0


@dataclass
class PagedExecutor:
    """A model with a cache whose pages are handed out in random order."""

    model: Model
    num_pages: int = 64
    seed: int = 0
    _free: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.cache = self.model.allocate_cache([self.num_pages] * len(self.model.cache_groups))
        self._free = [random.Random(self.seed).sample(range(self.num_pages), self.num_pages) for _ in self.model.cache_groups]

    def sequence(self, token_ids: Sequence[int], max_tokens: int | None = None) -> PagedSequence:
        """A new sequence with pages for `max_tokens` tokens (default: those it has)."""
        num_pages = -(-(max_tokens or len(token_ids)) // self._page_tokens)
        return PagedSequence(list(token_ids), [[free.pop() for _ in range(num_pages)] for free in self._free])

    def release(self, sequence: PagedSequence) -> None:
        """Take the pages of a sequence back; they keep what it wrote."""
        for free, table in zip(self._free, sequence.page_tables, strict=True):
            free[:0] = table

    def step(self, *chunks: tuple[PagedSequence, int]) -> list[Tensor]:
        """Run that many next tokens of every sequence in one batch; returns the logits of each, [tokens, vocab]."""
        batch = self._batch(chunks)
        logits = self.model.logits(self.model.forward(batch, self.cache).wanted)
        assert logits.dtype == torch.float32 and logits.shape == (len(batch.logit_rows), self.model.description.vocab_size)
        for sequence, num_tokens in chunks:
            sequence.num_computed_tokens += num_tokens
        counts = [num_tokens for _, num_tokens in chunks]
        return list(torch.split(logits[: sum(counts)], counts))

    def prefill(self, sequence: PagedSequence, num_tokens: int) -> None:
        """Run that many next tokens of a sequence, asking for no logits."""
        nothing = torch.empty(0, dtype=torch.int64)
        batch = replace(self._batch([(sequence, num_tokens)]), logit_rows=nothing)
        assert len(self.model.forward(batch, self.cache).wanted) == 0
        sequence.num_computed_tokens += num_tokens

    def logits(self, token_ids: Sequence[int], chunk: int | None = None) -> Tensor:
        """Logits of all tokens of a new sequence that runs alone, in chunks."""
        sequence = self.sequence(token_ids)
        logits = [self.step((sequence, size))[0] for size in chunk_sizes(len(token_ids), chunk or len(token_ids))]
        self.release(sequence)
        return torch.cat(logits)

    def greedy(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """The tokens that follow."""
        sequence = self.sequence(token_ids, len(token_ids) + num_tokens)
        chunk = len(token_ids)
        for _ in range(num_tokens):
            sequence.token_ids.append(int(self.step((sequence, chunk))[0][-1].argmax()))
            chunk = 1
        self.release(sequence)
        return sequence.token_ids[len(token_ids) :]

    @property
    def _page_tokens(self) -> int:
        return self.model.cache_groups[0].page_tokens

    def _batch(self, chunks: Sequence[tuple[PagedSequence, int]]) -> Batch:
        spans = [(seq, range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens)) for seq, num_tokens in chunks]
        num_rows = sum(len(span) for _, span in spans)
        groups = range(len(self.model.cache_groups))
        positions = torch.tensor([at for _, span in spans for at in span])
        starts = torch.tensor([0, *(len(span) for _, span in spans)]).cumsum(0)
        return Batch(
            token_ids=torch.tensor([seq.token_ids[at] for seq, span in spans for at in span]),
            positions=positions,
            last_keys=positions,
            slots=tuple(self._slots(spans, group) for group in groups),
            page_tables=tuple(_page_table([seq.page_tables[group] for seq, _ in spans]) for group in groups),
            query_starts=starts.to(torch.int32),
            logit_rows=torch.arange(num_rows),
        )

    def _slots(self, spans: Sequence[tuple[PagedSequence, range]], group: int) -> Tensor:
        size = self._page_tokens
        slots = [seq.page_tables[group][at // size] * size + at % size for seq, span in spans for at in span]
        return torch.tensor(slots)


def chunk_sizes(num_tokens: int, chunk: int) -> list[int]:
    """Sizes of the chunks that `num_tokens` are cut into."""
    return [min(chunk, num_tokens - start) for start in range(0, num_tokens, chunk)]


def _page_table(tables: Sequence[Sequence[int]]) -> Tensor:
    width = max(len(table) for table in tables)
    return torch.tensor([[*table, *[-1] * (width - len(table))] for table in tables], dtype=torch.int32)
