"""Routing rows to experts. The best experts are picked one after the other: PyPTO's own top-k promises nothing about ties."""

from typing import Literal

import pypto
import torch
from torch import Tensor

from kernels.pypto.tiles import rows_per_tile

_TAKEN = -1.0  # less than every score


@pypto.frontend.jit()
def moe_route_kernel(
    router_logits: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    weights: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    expert_ids: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    renormalize: bool,
    softmax: bool,
    tile: int,
):
    rows = router_logits.shape[0]
    experts = router_logits.shape[1]
    top_k = weights.shape[1]
    for index in pypto.loop((rows + tile - 1) // tile, name="TILES", idx_name="index"):
        start = index * tile
        valid = pypto.min(tile, rows - start)
        places = _places(experts)
        pypto.set_vec_tile_shapes(tile, experts)
        logits = pypto.cast(pypto.view(router_logits, [tile, experts], [start, 0], valid_shape=[valid, experts]), pypto.DT_FP32)
        scores = _softmax(logits) if softmax else _sigmoid(logits)
        chosen, ids = _best(scores, places, top_k)
        if renormalize:
            chosen = _renormalized(chosen)
        pypto.set_vec_tile_shapes(tile, (top_k + 7) // 8 * 8)  # 32 bytes
        pypto.assemble(_joined(chosen, tile, valid), [start, 0], weights)
        pypto.assemble(pypto.cast(_joined(ids, tile, valid), pypto.DT_INT32), [start, 0], expert_ids)


def _places(experts):
    # A range cut into tiles would begin each of them at 0.
    pypto.set_vec_tile_shapes(experts)
    places = pypto.cast(pypto.arange(experts), pypto.DT_FP32)
    pypto.set_vec_tile_shapes(1, experts)
    return pypto.reshape(places, [1, experts])


def _joined(columns, tile, valid):
    # PyPTO forgets here which rows are valid, and cannot assemble what it has concatenated but a copy of it.
    whole = pypto.view(pypto.concat(columns, -1), [tile, len(columns)], [0, 0], valid_shape=[valid, len(columns)])
    return pypto.clone(whole)


def _softmax(logits):
    powers = pypto.exp(logits - pypto.amax(logits, -1, True))
    return powers / pypto.sum(powers, -1, True)


def _sigmoid(logits):
    # 1 / (1 + exp(-x)) with exp of nothing positive: neither end overflows. pypto.sigmoid fails on a tile that is not full.
    shrunk = pypto.exp(pypto.abs(logits) * -1.0)
    return pypto.where(pypto.ge(logits, 0.0), pypto.reciprocal(shrunk + 1.0), shrunk / (shrunk + 1.0))


def _best(scores, places, top_k):
    """The `top_k` greatest scores of each row and their places, columns [tile, 1] each; the lowest place of equal ones."""
    chosen, ids = [], []
    for _ in range(top_k):
        greatest = pypto.amax(scores, -1, True)
        here = pypto.amin(pypto.where(pypto.ge(scores, greatest), scores * 0.0 + places, places.shape[1] - 1.0), -1, True)
        chosen.append(greatest)
        ids.append(here)
        scores = pypto.where(pypto.eq(scores * 0.0 + places, here), _TAKEN, scores)
    return chosen, ids


def _renormalized(chosen):
    total = chosen[0]
    for column in chosen[1:]:
        total = total + column
    return [column / total for column in chosen]


def moe_route(router_logits: Tensor, top_k: int, renormalize: bool, scoring: Literal["softmax", "sigmoid"]) -> tuple[Tensor, Tensor]:
    """The best experts of each row and their weights, as kernels.ops.moe_route, of logits in bf16."""
    assert scoring in ("softmax", "sigmoid"), scoring
    weights = torch.empty(router_logits.shape[0], top_k, dtype=torch.float32, device=router_logits.device)
    ids = torch.empty_like(weights, dtype=torch.int32)
    moe_route_kernel(router_logits, weights, ids, renormalize, scoring == "softmax", rows_per_tile(router_logits.shape[1]))
    return weights, ids
