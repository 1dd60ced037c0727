"""Draws on a kind of device without float64: an NPU computes in float32 whatever it is asked for.

The same distribution and the same random number as in worker.sampling.sampler, and so the token that exact numbers would draw, unless the
random number falls within some 2^-21 of where one token's share ends and the next one's begins, or a filter's cut within that of a weight.

No order of adding is left to a library. Sums of weights are pairwise, over absolute places. Running sums, which decide, are of whole
numbers: the shares that weights have of 2^30, exact in int32 in every order. They go over blocks, and then over the columns of one block.
Nothing here sorts or searches whole numbers, shifts bits, or waits for the device.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import ops
from kernels.accelerator.rows import sum_features
from pypto_serving.wire.columns import Floats
from worker.sampling.philox import Floats64
from worker.step import Ints
from worker.transfers import to_device

_BLOCK_ROWS = 64  # bounds the memory that drawing takes, in rows of the vocabulary
_BLOCK_COLUMNS = 128
_MAX_LEADING = 128  # the largest top-k that needs no sorted row
_WHOLE = 1 << 30  # what the shares of a row add up to, but for their rounding; twice as much overflows

#: The greatest weights of each row, in falling order: [rows, vocab] to [rows, leading], at least as many as top-k keeps.
_Leading = Callable[[Tensor], Tensor]


def draw(tempered: Callable[[Ints], Tensor], top_k: Ints, top_p: Floats, points: Floats64, vocab_size: int) -> Tensor:
    """Draw for each row at `points` in (0, 1); returns token ids [rows] int64 on the device of the scores.

    `tempered` gives the scores of the rows at some places, rising: divided by the temperature, the greatest of each row 0, -inf what cannot
    be drawn. A top-k of `vocab_size` and a top-p of 1 keep them all.
    """
    # 24 bits of the points, rounded up: a float32 holds them, and never 0.
    rounded = np.ceil(points * 2**24) * 2.0**-24
    blocks = [(places, leading) for group, leading in _groups(top_k, top_p, vocab_size) for places in _in_blocks(group)]
    token_ids = []
    for places, leading in blocks:
        # In one copy; no vocabulary has more than the 2^24 tokens that a float32 counts.
        parameters = np.stack([top_p[places], top_k[places], rounded[places]])
        scores = tempered(places)
        token_ids.append(_draw_block(scores, to_device(parameters.astype(np.float32), scores.device), leading))
    order = np.argsort(np.concatenate([places for places, _ in blocks]))
    return torch.cat(token_ids)[to_device(order, token_ids[0].device)]


def _groups(top_k: Ints, top_p: Floats, vocab_size: int) -> Iterator[tuple[Ints, _Leading | None]]:
    """The places of the rows that are filtered in one way, and how their greatest weights are found; None: they are not filtered."""
    num_leading = min(_MAX_LEADING, vocab_size)
    few = top_k <= num_leading
    filtered = (top_k < vocab_size) | (top_p < 1)
    yield np.flatnonzero(few & filtered), lambda weights: ops.top_k(weights, num_leading)
    yield np.flatnonzero(~few & filtered), lambda weights: weights.sort(dim=-1, descending=True).values
    yield np.flatnonzero(~filtered), None


def _in_blocks(places: Ints) -> list[Ints]:
    return [places[start : start + _BLOCK_ROWS] for start in range(0, len(places), _BLOCK_ROWS)]


def _draw_block(scores: Tensor, parameters: Tensor, leading: _Leading | None) -> Tensor:
    """Draw from tempered `scores` [rows, vocab] by top-p, top-k and point: `parameters` [3, rows]; returns token ids."""
    top_p, top_k, points = parameters.unsqueeze(-1)
    weights = scores.exp()  # the greatest one is 1
    if leading is not None:
        weights = _filter(weights, leading(weights), top_k.int(), top_p)
    # A row of NaN has failed, and its token is not used.
    return _reach(weights, points).squeeze(-1).clamp(max=scores.shape[-1] - 1)


def _filter(weights: Tensor, leading: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The weights [rows, vocab] that top-k [rows, 1] int32 and top-p [rows, 1] keep, zeros in place of the others."""
    places = torch.arange(leading.shape[-1], dtype=torch.int32, device=leading.device)
    share = _reach(leading.where(places < top_k, 0.0), top_p).int() + 1
    num_kept = share.where(top_p < 1, top_k).minimum(top_k)
    least = leading.gather(-1, num_kept.long() - 1)
    return weights.where(mark_greatest(weights, least, num_kept), 0.0)


def mark_greatest(weights: Tensor, least: Tensor, count: Tensor) -> Tensor:
    """Marks the `count` largest weights of each row, of which `least` is the last; of those equal to it the lowest token ids are in."""
    above, equal = weights > least, weights == least
    room = (count - above.sum(dim=-1, keepdim=True, dtype=torch.int32)).int()
    return above | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= room))


def _reach(weights: Tensor, points: Tensor) -> Tensor:
    """For each row of weights >= 0 the first column whose running sum reaches `points` [rows, 1] of the total: [rows, 1] int64."""
    if weights.shape[-1] <= _BLOCK_COLUMNS:
        return _reach_share(weights, sum_features(weights), points)[0]
    blocks = F.pad(weights, (0, -weights.shape[-1] % _BLOCK_COLUMNS)).reshape(len(weights), -1, _BLOCK_COLUMNS)
    sums = sum_features(blocks).squeeze(-1)
    block, points = _reach_share(sums, sum_features(sums), points)
    chosen = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK_COLUMNS)).squeeze(1)
    column, _ = _reach_share(chosen, sums.gather(-1, block), points)
    return block * _BLOCK_COLUMNS + column


def _reach_share(weights: Tensor, sum_of_weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """The same by shares of whole numbers, and which part of its own share that column had to give for it: [rows, 1] each."""
    shares = (weights / sum_of_weights * _WHOLE).round().int()
    sums = shares.cumsum(dim=-1, dtype=torch.int32)
    total = sums[:, -1:]
    wanted = (points * total).ceil().int().minimum(total)
    column = (sums < wanted).sum(dim=-1, keepdim=True, dtype=torch.int32).clamp(max=weights.shape[-1] - 1).long()
    share = shares.gather(-1, column)
    return column, (wanted - (sums.gather(-1, column) - share)) / share
