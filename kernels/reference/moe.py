"""Routing rows to experts, and the experts' own work."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference.rows import swiglu


def moe_route(router_logits: Tensor, top_k: int, renormalize: bool, scoring: str) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] -> (weights [T, k] fp32, expert ids [T, k] int64), best first, ties to the lowest id.

    `scoring` is "softmax" (over all experts) or "sigmoid"; `renormalize` makes the chosen weights sum to one.
    """
    assert scoring in ("softmax", "sigmoid"), scoring
    logits = router_logits.float()
    scores = torch.softmax(logits, dim=-1) if scoring == "softmax" else torch.sigmoid(logits)
    ordered, experts = torch.sort(scores, dim=-1, descending=True, stable=True)
    weights, expert_ids = ordered[:, :top_k], experts[:, :top_k].contiguous()
    # Column by column: the order in which sum(-1) adds depends on the number of rows.
    return (weights / sum_columns(weights) if renormalize else weights.contiguous()), expert_ids


def sum_columns(columns: Tensor) -> Tensor:
    """columns [T, k] -> [T, 1], added from left to right."""
    total = columns[:, :1]
    for column in range(1, columns.shape[1]):
        total = total + columns[:, column : column + 1]
    return total


def moe_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x [T, H], weights and expert_ids [T, k], gate_up [E, 2I, H] (gates first), down [E, H, I] -> [T, H]; see apply_experts."""

    def expert(index: int, rows: Tensor) -> Tensor:
        return F.linear(swiglu(F.linear(rows, gate_up[index])), down[index])

    return apply_experts(x, weights, expert_ids, len(gate_up), expert)


def apply_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, num_experts: int, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """x [T, H], weights and expert_ids [T, k] -> [T, H]: the weighted experts of a row, added in fp32 in its top-k order.

    Rows are grouped per expert: `expert(index, rows [n, H])` has to give each of them what it would give it among any other rows. How many
    rows an expert has decides shapes: the host asks the device for it, so this cannot be captured into a graph.
    """
    num_rows, top_k = expert_ids.shape
    chosen = expert_ids.flatten()
    by_expert = torch.argsort(chosen, stable=True)
    counts = torch.bincount(chosen, minlength=num_experts).tolist()
    rows, parts, first = x[by_expert // top_k], [], 0
    for index, count in enumerate(counts):
        if count:
            parts.append(expert(index, rows[first : first + count]))
            first += count
    outputs = torch.empty_like(rows)
    outputs[by_expert] = torch.cat(parts)
    return weighted_sum(outputs.view(num_rows, top_k, -1), weights).to(x.dtype)


def weighted_sum(outputs: Tensor, weights: Tensor) -> Tensor:
    """outputs [T, k, H], weights [T, k] fp32 -> [T, H] fp32, added in order."""
    total = outputs[:, 0].float() * weights[:, :1]
    for slot in range(1, weights.shape[1]):
        total = total + outputs[:, slot].float() * weights[:, slot : slot + 1]
    return total
