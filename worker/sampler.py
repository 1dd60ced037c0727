"""Draws the next token of each row.

The order of operations is vLLM's: mask, minimum length, bias, penalties (repetition, frequency, presence), temperature, min-p, top-k,
top-p, each over what the ones before it left. Then one uniform number is put through the inverse of the distribution that remains, in
token-id order. Ties go to the lowest token id everywhere, so top-k keeps exactly k tokens.

A row's token depends on nothing but the row, bit for bit: reductions run along single rows by operators that treat every row alike,
sums that decide are float64 running sums, and how many candidates a row needs is read off that row.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels import ops
from worker.philox import Purpose, uniforms
from worker.ranking import Ranking, rank
from worker.sampling_rows import SamplingRows
from worker.step_rules import Bools, Ints
from worker.token_entries import TokenEntries

#: Smaller temperatures are greedy: logits divided by them would leave the range of float32.
MIN_TEMPERATURE = 1e-5

_BLOCK_ROWS = 32  # bounds the memory that drawing takes
_NUM_CANDIDATES = (128, 2048)  # tried in this order before a row is sorted as a whole

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Outcome of each row."""

    token_ids: Ints
    failed: Bools  # rows without a single token that could be drawn; their token ids mean nothing


def sample(logits: Tensor, rows: SamplingRows) -> SampledTokens:
    """Draw one token for each row of `logits` [rows, vocab] float32, which stay as they are."""
    if not len(logits):
        return SampledTokens(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_))
    scores = _steer(logits, rows)
    token_ids = ops.argmax(scores)
    failed = ~scores.gather(-1, token_ids[:, None]).squeeze(-1).isfinite()
    random_rows = np.flatnonzero(rows.columns.temperature >= MIN_TEMPERATURE)
    for block in np.array_split(random_rows, -(-len(random_rows) // _BLOCK_ROWS)) if len(random_rows) else ():
        places = torch.from_numpy(block).to(logits.device)
        token_ids[places] = _draw(scores[places], rows, block)
    return SampledTokens(token_ids.cpu().numpy(), failed.cpu().numpy())


def _steer(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Everything that comes before the temperature."""
    if not (len(rows.masks.rows) or len(rows.banned) or len(rows.biases) or len(rows.history)):
        return logits
    scores = logits.clone()
    if len(rows.masks.rows):
        _mask(scores, rows)
    if len(rows.banned):
        banned_rows, token_ids, _ = _send(rows.banned, logits.device)
        scores[banned_rows, token_ids] = _NEVER
    if len(rows.biases):
        biased_rows, token_ids, values = _send(rows.biases, logits.device)
        scores[biased_rows, token_ids] += values
    if len(rows.history):
        _penalise(scores, rows)
    return scores


def _mask(scores: Tensor, rows: SamplingRows) -> None:
    places = torch.from_numpy(rows.masks.rows).to(scores.device)
    packed = torch.from_numpy(rows.masks.allowed).to(scores.device)
    bits = (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=scores.device)) & 1
    allowed = bits.flatten(1)[:, : scores.shape[-1]].bool()
    scores[places] = scores[places].masked_fill(~allowed, _NEVER)


def _penalise(scores: Tensor, rows: SamplingRows) -> None:
    """Formulas as in vLLM: the repetition penalty divides positive scores and multiplies negative ones.

    A token that occurs more than once is written more than once, each time with the same value.
    """
    entry_rows, token_ids, generated = _send(rows.history, scores.device)
    repetition, frequency, presence = (
        torch.from_numpy(column[rows.history.rows]).to(scores.device)
        for column in (rows.columns.repetition_penalty, rows.columns.frequency_penalty, rows.columns.presence_penalty)
    )
    affected = scores[entry_rows, token_ids]
    penalised = np.flatnonzero(rows.columns.penalised)
    places = torch.from_numpy(np.searchsorted(penalised, rows.history.rows)).to(scores.device)
    counts = scores.new_zeros(len(penalised), scores.shape[-1]).index_put_((places, token_ids), generated, accumulate=True)
    counts = counts[places, token_ids]
    affected = torch.where(affected > 0, affected / repetition, affected * repetition)
    affected -= frequency * counts
    affected -= presence * (counts > 0)
    scores[entry_rows, token_ids] = affected


def _draw(scores: Tensor, rows: SamplingRows, block: Ints) -> Tensor:
    """Draw from `scores` [rows of the block, vocab]; returns token ids."""
    columns, device, vocab_size = rows.columns, scores.device, scores.shape[-1]
    scores = scores / torch.from_numpy(columns.temperature[block]).to(device)[:, None]
    weights = scores.softmax(dim=-1)
    if columns.min_p[block].any():
        least = torch.from_numpy(columns.min_p[block]).to(device)[:, None] * weights.amax(dim=-1, keepdim=True)
        scores = scores.masked_fill(weights < least, _NEVER)
        weights = scores.softmax(dim=-1)
    points = torch.from_numpy(uniforms(columns.seed[block], rows.indices[block], Purpose.TOKEN)).to(device)[:, None]
    top_k = np.where((columns.top_k[block] == 0) | (columns.top_k[block] > vocab_size), vocab_size, columns.top_k[block])
    cuts = _Cuts(torch.from_numpy(top_k).to(device)[:, None], torch.from_numpy(columns.top_p[block]).to(device)[:, None])
    filtered = np.flatnonzero((top_k < vocab_size) | (columns.top_p[block] < 1))
    if len(filtered) == len(block):
        return _draw_filtered(scores, weights, cuts, points)
    token_ids = _invert(weights, points)
    if len(filtered):
        places = torch.from_numpy(filtered).to(device)
        token_ids[places] = _draw_filtered(scores[places], weights[places], cuts.of(places), points[places])
    return token_ids


@dataclass(frozen=True, slots=True)
class _Cuts:
    """What top-k and top-p keep of each row."""

    top_k: Tensor  # [rows, 1] int64; the size of the vocabulary: off
    top_p: Tensor  # [rows, 1] float32

    def of(self, places: Tensor) -> "_Cuts":
        return _Cuts(self.top_k[places], self.top_p[places])

    def count_kept(self, ranking: Ranking, masses: Tensor, vocab_size: int) -> Tensor:
        """How many leading candidates stay, [rows, 1]; too many where the candidates do not reach as far as the cut."""
        num_candidates = masses.shape[-1]
        sums = _running_sums(masses)
        before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=-1)
        of_top_k = sums.gather(-1, self.top_k.clamp(max=num_candidates) - 1)
        total = torch.where(self.top_k == vocab_size, torch.ones_like(of_top_k), of_top_k)
        ranks = torch.arange(num_candidates, device=masses.device)
        kept = (ranks < self.top_k) & (ranking.values > _NEVER) & ((self.top_p >= 1) | (before < self.top_p * total))
        return kept.sum(dim=-1, keepdim=True).clamp(min=1)


def _draw_filtered(scores: Tensor, weights: Tensor, cuts: _Cuts, points: Tensor) -> Tensor:
    """Draw with top-k and top-p: from a few candidates where they hold all that stays, else from the sorted row."""
    vocab_size = scores.shape[-1]
    token_ids = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    left = torch.arange(len(scores), device=scores.device)
    for num_candidates in (*_NUM_CANDIDATES, vocab_size):
        ranking = rank(scores[left], num_candidates)
        masses = weights[left].gather(-1, ranking.token_ids)
        num_kept = cuts.of(left).count_kept(ranking, masses, vocab_size)
        token_ids[left] = _invert_kept(ranking, masses, num_kept, points[left])
        left = left[~ranking.settles(ranking.values.gather(-1, num_kept - 1))]
        if not len(left):
            break
    return token_ids


def _invert_kept(ranking: Ranking, masses: Tensor, num_kept: Tensor, points: Tensor) -> Tensor:
    """Draw from the leading `num_kept` candidates, in token-id order."""
    dropped = torch.arange(masses.shape[-1], device=masses.device) >= num_kept
    by_token_id = torch.empty_like(masses).scatter_(-1, ranking.order, masses.masked_fill(dropped, 0.0))
    return ranking.candidates.gather(-1, _invert(by_token_id, points)[:, None]).squeeze(-1)


def _invert(weights: Tensor, points: Tensor) -> Tensor:
    """For each row, the first column whose running sum exceeds `points` [rows, 1] times the total."""
    sums = _running_sums(weights)
    columns = torch.searchsorted(sums, points * sums[:, -1:], right=True)
    # A row of NaN has no such column; it has failed, and its token is not used.
    return columns.squeeze(-1).clamp(max=weights.shape[-1] - 1)


def _running_sums(weights: Tensor) -> Tensor:
    # Accelerators add a single row up in another order than several.
    if len(weights) == 1:
        return weights.expand(2, -1).cumsum(dim=-1, dtype=torch.float64)[:1]
    return weights.cumsum(dim=-1, dtype=torch.float64)


def _send(entries: TokenEntries, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    rows, token_ids, values = (torch.from_numpy(column).to(device) for column in (entries.rows, entries.token_ids, entries.values))
    return rows, token_ids, values
