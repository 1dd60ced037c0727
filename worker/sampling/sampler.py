"""Draws the next token of each row.

The order of operations is vLLM's: mask, minimum length, bias, penalties (repetition, frequency, presence), temperature, min-p, top-k,
top-p, each over what the ones before it left. Then one uniform number is put through the inverse of the distribution that remains, in
token-id order. Ties go to the lowest token id everywhere, so top-k keeps exactly k tokens. A score that bias or penalties drive out of
the range of float32 stops at its end: only mask and minimum length exclude tokens.

A row's token depends on nothing but the row, bit for bit: reductions run along single rows by operators that treat every row alike,
sums that decide are float64 running sums, and how many candidates a row needs is read off that row.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernels import ops
from pypto_serving.wire.contract import MIN_TEMPERATURE
from worker.sampling.float32_draw import draw, mark_greatest
from worker.sampling.philox import Purpose, uniforms
from worker.sampling.sampling_rows import SamplingRows
from worker.sampling.token_entries import TokenEntries
from worker.step import Ints, SamplingColumns
from worker.transfers import to_device

_BLOCK_ROWS = 8  # what drawing takes for so many rows of a large vocabulary still fits into a CPU's cache
_NUM_CANDIDATES = (2048,)  # tried in this order before a row is sorted as a whole

_NEVER = float("-inf")
_LARGEST = torch.finfo(torch.float32).max
_BITS = np.array([1, 2, 4, 8, 16, 32, 64, 128], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Outcome of each row, where the logits are or copied to the host."""

    token_ids: Tensor  # [rows] int64
    failed: Tensor  # [rows] bool: rows without a single token that could be drawn; their token ids mean nothing, but are in range
    excluded: Tensor  # [rows] bool: failed rows of sound logits: mask and minimum length left nothing; bias and penalties never do

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of it, in the order of the fields."""
        return self.token_ids, self.failed, self.excluded


@dataclass(frozen=True, slots=True)
class _Scores:
    """What rows draw from: their logits, those of some rows adjusted."""

    logits: Tensor  # [rows, vocab]
    adjusted: Ints  # which rows, rising
    scores: Tensor  # [adjusted rows, vocab]

    def of(self, rows: Ints) -> Tensor:
        """A copy of those of `rows`, rising: [rows, vocab]."""
        device = self.logits.device
        found = self.logits[to_device(rows, device)]
        places, here, there = np.intersect1d(rows, self.adjusted, assume_unique=True, return_indices=True)
        if len(places):
            found[to_device(here, device)] = self.scores[to_device(there, device)]
        return found


def sample(logits: Tensor, rows: SamplingRows) -> SampledTokens:
    """Draw one token for each row of `logits` [rows, vocab] float32, which stay as they are. On an accelerator nothing waits for it."""
    greatest, token_ids = ops.greatest(logits) if len(logits) else (logits.new_empty(0), logits.new_empty(0, dtype=torch.int64))
    sound, excluded = greatest.isfinite(), torch.zeros_like(greatest, dtype=torch.bool)
    scores = _Scores(logits, rows.adjusted, logits[:0])
    if len(scores.adjusted):
        places = to_device(scores.adjusted, logits.device)
        scores = replace(scores, scores=_adjust(logits[places], rows.only_adjusted()))
        left, token_ids[places] = ops.greatest(scores.scores)
        excluded[places] = sound[places] & left.isneginf()
    random_rows = np.flatnonzero((rows.columns.temperature >= MIN_TEMPERATURE) & (rows.columns.top_k != 1))
    if len(random_rows):
        token_ids[to_device(random_rows, logits.device)] = _draw(scores, rows, random_rows)
    return SampledTokens(token_ids, excluded | ~sound, excluded)


def _adjust(scores: Tensor, rows: SamplingRows) -> Tensor:
    """Everything that comes before the temperature, in place; returns `scores`."""
    if len(rows.masks.rows):
        _mask(scores, rows)
    if len(rows.banned):
        banned_rows, token_ids, _ = _send(rows.banned, scores.device)
        scores[banned_rows, token_ids] = _NEVER
    if len(rows.biases):
        biased_rows, token_ids, values = _send(rows.biases, scores.device)
        before = scores[biased_rows, token_ids]
        scores[biased_rows, token_ids] = _bounded(before + values, before)
    if len(rows.history):
        _penalise(scores, rows)
    return scores


def _mask(scores: Tensor, rows: SamplingRows) -> None:
    places, packed = to_device(rows.masks.rows, scores.device), to_device(rows.masks.allowed, scores.device)
    allowed = (packed[:, :, None] & to_device(_BITS, scores.device)).bool().flatten(1)[:, : scores.shape[-1]]
    scores[places] = scores[places].masked_fill(~allowed, _NEVER)


def _penalise(scores: Tensor, rows: SamplingRows) -> None:
    """Formulas as in vLLM: the repetition penalty divides positive scores and multiplies negative ones."""
    entry_rows, token_ids, counts = _send(rows.history, scores.device)
    if rows.unread is not None:
        last = torch.full((len(scores),), -1, device=scores.device)
        rows.unread.put(last)
        entry_rows, token_ids, counts = _count_last(entry_rows, token_ids, counts, last, to_device(rows.unread.rows, scores.device))
    repetition, frequency, presence = (
        to_device(column.copy(), scores.device)[entry_rows]
        for column in (rows.columns.repetition_penalty, rows.columns.frequency_penalty, rows.columns.presence_penalty)
    )
    before = scores[entry_rows, token_ids]
    scaled = _bounded(torch.where(before > 0, before / repetition, before * repetition), before)
    scores[entry_rows, token_ids] = _bounded(scaled - frequency * counts - presence * (counts > 0), before)


def _count_last(entry_rows: Tensor, token_ids: Tensor, counts: Tensor, last: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries with one token more in each of the rows `places`: its `last` [rows]. If it is known, two entries say the same."""
    again = token_ids == last[entry_rows]
    counts = counts + again
    total = torch.zeros_like(last, dtype=counts.dtype).index_add(0, entry_rows, counts.where(again, 0.0))
    return (
        torch.cat([entry_rows, places]),
        torch.cat([token_ids, last[places]]),
        torch.cat([counts, total[places].clamp(min=1)]),
    )


def _bounded(values: Tensor, before: Tensor) -> Tensor:
    """Adjusted `values`, made finite where they left the range of float32: only what could not be drawn `before` cannot be drawn now."""
    return values.clamp(-_LARGEST, _LARGEST).masked_fill(before.isneginf(), _NEVER)


def _draw(scores: _Scores, rows: SamplingRows, drawn: Ints) -> Tensor:
    """Draw for the rows `drawn`, rising, a block at a time; returns token ids."""
    columns, device, vocab_size = rows.columns, scores.logits.device, scores.logits.shape[-1]
    uniform = uniforms(columns.seed[drawn], rows.indices[drawn], Purpose.TOKEN)
    top_k, top_p = columns.top_k[drawn], columns.top_p[drawn]
    top_k = np.where((top_k == 0) | (top_k > vocab_size), vocab_size, top_k)

    def tempered(places: Ints) -> Tensor:
        return _temper(scores.of(drawn[places]), columns, drawn[places])

    if not ops.has_float64(device.type):
        return draw(tempered, top_k, top_p, uniform, vocab_size)
    token_ids = []
    for start in range(0, len(drawn), _BLOCK_ROWS):
        block = np.arange(start, min(start + _BLOCK_ROWS, len(drawn)))
        weights = tempered(block).softmax(dim=-1)
        filtered = to_device(np.flatnonzero((top_k[block] < vocab_size) | (top_p[block] < 1)), device)
        if len(filtered):
            cuts = _Cuts(to_device(top_k[block], device)[:, None], to_device(top_p[block], device)[:, None])
            weights[filtered] = _filter(_at(weights, filtered), cuts.of(filtered))
        token_ids.append(_invert(weights, to_device(uniform[block], device)[:, None]))
    return torch.cat(token_ids)


def _temper(scores: Tensor, columns: SamplingColumns, rows: Ints) -> Tensor:
    """Temperature and min-p: the scores of `rows`, the greatest 0, and -inf where a weight is too small beside the greatest."""
    device, min_p = scores.device, columns.min_p[rows]
    # Where the largest score is 0 no temperature makes an infinite one of it.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / to_device(columns.temperature[rows], device)[:, None]
    return scores.masked_fill(scores.exp() < to_device(min_p, device)[:, None], _NEVER) if min_p.any() else scores


@dataclass(frozen=True, slots=True)
class _Cuts:
    """What top-k and top-p keep of each row."""

    top_k: Tensor  # [rows, 1] int64; the size of the vocabulary: off
    top_p: Tensor  # [rows, 1] float32

    def of(self, places: Tensor) -> "_Cuts":
        return _Cuts(self.top_k[places], self.top_p[places])

    def count_kept(self, leading: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
        """How many of the `leading` weights of a row, in falling order, stay [rows, 1], and whether that many stay of the row [rows]."""
        num_leading = leading.shape[-1]
        sums = _running_sums(leading)
        # The weights of a whole row sum to 1.
        total = sums.gather(-1, self.top_k.clamp(max=num_leading) - 1).where(self.top_k < vocab_size, 1.0)
        # A weight stays while the sum before it, which never falls, is below its limit; the first one always does.
        share = (torch.searchsorted(sums, self.top_p * total) + 1).where(self.top_p < 1, num_leading)
        num_kept = share.clamp(max=num_leading).minimum(self.top_k)
        total_is_known = (self.top_k <= num_leading) | (self.top_k == vocab_size)
        cut_is_known = (num_kept < num_leading) | (num_kept == self.top_k)
        return num_kept, (total_is_known & cut_is_known).squeeze(-1)


def _filter(weights: Tensor, cuts: _Cuts) -> Tensor:
    """The weights [rows, vocab] that top-k and top-p keep, zeros in place of the others."""
    if not weights.is_cpu:  # without a question to the device
        leading = weights.sort(dim=-1, descending=True).values
        num_kept, _ = cuts.count_kept(leading, weights.shape[-1])
        return weights.where(_at_least(weights, leading.gather(-1, num_kept - 1), num_kept), 0.0)
    num_kept, least = torch.zeros_like(cuts.top_k), torch.zeros_like(weights[:, :1])
    left = torch.arange(len(weights), device=weights.device)
    for num_candidates in (*_NUM_CANDIDATES, weights.shape[-1]):
        leading = _leading(_at(weights, left), num_candidates)
        num_kept[left], settled = cuts.of(left).count_kept(leading, weights.shape[-1])
        least[left] = leading.gather(-1, num_kept[left] - 1)
        left = left[~settled]
        if not len(left):
            break
    return weights.where(_at_least(weights, least, num_kept), 0.0)


def _leading(weights: Tensor, count: int) -> Tensor:
    """The largest `count` weights of each row, or all, in falling order."""
    # numpy selects and sorts with vector instructions: 2,048 of a wide vocabulary take it less time than 128 take torch.
    values = weights.numpy()
    chosen = values if count >= values.shape[-1] else np.partition(values, -count, axis=-1)[:, -count:]
    return torch.from_numpy(np.sort(chosen, axis=-1)).flip(-1)


def _at_least(weights: Tensor, least: Tensor, count: Tensor) -> Tensor:
    """Marks the `count` largest weights of each row, of which `least` is the last; of those equal to it the lowest token ids are in."""
    marked = weights >= least
    if weights.is_cpu and bool((marked.sum(dim=-1, keepdim=True) == count).all()):
        return marked
    return mark_greatest(weights, least, count)


def _invert(weights: Tensor, points: Tensor) -> Tensor:
    """For each row, the first column whose running sum exceeds `points` [rows, 1] times the total."""
    sums = _running_sums(weights)
    columns = torch.searchsorted(sums, points * sums[:, -1:], right=True)
    # A row of NaN has no such column; it has failed, and its token is not used.
    return columns.squeeze(-1).clamp(max=weights.shape[-1] - 1)


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """The rows at some distinct and rising places; all of them come without a copy."""
    return rows if len(places) == len(rows) else rows[places]


def _running_sums(weights: Tensor) -> Tensor:
    # Accelerators add a single row up in another order than several.
    if len(weights) == 1 and not weights.is_cpu:
        return weights.expand(2, -1).cumsum(dim=-1, dtype=torch.float64)[:1]
    return weights.cumsum(dim=-1, dtype=torch.float64)


def _send(entries: TokenEntries, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    return to_device(entries.rows, device), to_device(entries.token_ids, device), to_device(entries.values, device)
