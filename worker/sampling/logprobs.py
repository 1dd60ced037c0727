"""Log probabilities of tokens, from the unmodified logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pypto_serving.wire.columns import Floats, Ids
from worker.step import Bools, Ints, PromptTokenLogprobs, SamplingColumns, TokenLogprobs
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


#: Of no rows.
NO_LOGPROBS = RowLogprobs(torch.empty(0), torch.empty(0, 0, dtype=torch.int64), torch.empty(0, 0))


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The sampled rows whose lanes want the log probabilities of their tokens."""

    rows: Ints  # indices into the sampled rows
    num_top: Ints  # for each of them, how many alternatives

    @classmethod
    def of(cls, columns: SamplingColumns) -> "TokenRows":
        """The rows that ask for them."""
        rows = np.flatnonzero(columns.logprobs)
        return cls(rows, columns.top_logprobs[rows])

    def compute(self, logits: Tensor, token_ids: Tensor) -> RowLogprobs:
        """Of the drawn `token_ids` [sampled rows], from their `logits`."""
        if not len(self.rows):
            return NO_LOGPROBS
        wanted = to_device(self.rows, logits.device)
        return row_logprobs(lambda first, last: logits[wanted[first:last]], token_ids[wanted], int(self.num_top.max()))

    def report(self, logprobs: RowLogprobs, lanes: Ints, kept: Bools) -> Sequence[TokenLogprobs]:
        """The log probabilities, on the host, by lane: sampled row i is `lanes[i]`, and is left out unless `kept`."""
        chosen, top_token_ids, top_logprobs = _on_host(logprobs)
        return [
            TokenLogprobs(int(lanes[row]), float(chosen[place]), top_token_ids[place, :count], top_logprobs[place, :count])
            for place, (row, count) in enumerate(zip(self.rows.tolist(), self.num_top.tolist(), strict=True))
            if kept[row]
        ]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """The token rows of a step whose logits tell about prompt tokens.

    The logits at index i tell about token i + 1. So a chunk from index a up to b tells about prompt tokens a + 1 to b, and a lane that is
    admitted with c computed tokens never tells about tokens 1 to c: whoever wants those must not admit it with so many.
    """

    rows: Ints  # indices into the token rows of the step
    lanes: Ints  # for each of them, its lane; rows of a lane are neighbours
    generations: Ints
    num_top: Ints  # for each of them, how many alternatives
    targets: Ints  # for each of them, the prompt token that it tells about
    first_indices: Ints  # for each of them, the index of that token in the prompt

    def compute(self, logits_of: LogitsOf, device: torch.device) -> RowLogprobs:
        """Of the prompt tokens; row i of the logits is row i of these."""
        return row_logprobs(logits_of, to_device(self.targets, device), int(self.num_top.max())) if len(self.rows) else NO_LOGPROBS

    def report(self, logprobs: RowLogprobs, left_out: Ints) -> Sequence[PromptTokenLogprobs]:
        """The log probabilities, on the host, lane by lane, some lanes left out."""
        chosen, top_token_ids, top_logprobs = _on_host(logprobs)
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


def _on_host(logprobs: RowLogprobs) -> tuple[Floats, Ids, Floats]:
    return logprobs.chosen.numpy(), logprobs.top_token_ids.numpy().astype(np.uint32), logprobs.top_logprobs.numpy()


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
