"""The largest values of each row in one defined order, without sorting whole vocabularies."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates of each row, by rising token id, and their order: falling values, equal ones by rising token id."""

    candidates: Tensor  # [rows, candidates] int64: token ids
    order: Tensor  # [rows, candidates] int64: places in `candidates`
    values: Tensor  # [rows, candidates], in order
    complete: bool  # every token of the row is a candidate

    @property
    def token_ids(self) -> Tensor:
        """Token ids in order."""
        return self.candidates.gather(-1, self.order)

    def settles(self, last_values: Tensor) -> Tensor:
        """For each row, whether every token down to `last_values` [rows, 1] is a candidate: [rows] bool."""
        if self.complete:
            return torch.ones(len(self.values), dtype=torch.bool, device=self.values.device)
        return (self.values[:, -1:] < last_values).squeeze(-1)


def rank(values: Tensor, num_candidates: int) -> Ranking:
    """The largest `num_candidates` of each row of `values` [rows, vocab]; which of the tokens equal to the last one are in is open."""
    vocab_size = values.shape[-1]
    complete = num_candidates >= vocab_size
    if complete:
        candidates, chosen = torch.arange(vocab_size, device=values.device).expand(values.shape), values
    else:
        candidates = values.topk(num_candidates, dim=-1, sorted=False).indices.sort(dim=-1).values
        chosen = values.gather(-1, candidates)
    ordered, order = chosen.sort(dim=-1, descending=True, stable=True)
    return Ranking(candidates, order, ordered, complete)


def top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and token ids [rows, count] of the largest `count` of each row, best first, equal ones by rising token id."""
    if not count:
        return values[:, :0], torch.empty((len(values), 0), dtype=torch.int64, device=values.device)
    # An accelerator sorts whole rows: asking whether fewer candidates settle one would wait for it.
    ranking = rank(values, max(64, 2 * count) if values.is_cpu else values.shape[-1])
    top_values, token_ids = ranking.values[:, :count], ranking.token_ids[:, :count]
    if ranking.complete:
        return top_values, token_ids
    open_rows = (~ranking.settles(top_values[:, -1:])).nonzero().squeeze(-1)
    if len(open_rows):
        full = rank(values[open_rows], values.shape[-1])
        top_values[open_rows], token_ids[open_rows] = full.values[:, :count], full.token_ids[:, :count]
    return top_values, token_ids
