"""Routing rows to experts, and the experts' own work as two grouped products."""

import torch
from torch import Tensor

_COUNTS = 1  # of rows for each group, not their sums
_BY_ROWS = 0  # groups are of the rows of x, not of the depth
_ONE_TENSOR = 2  # for the rows of all groups
_ROW_MAJOR = 2  # places of a row's outputs follow one another, none is dropped


def moe_route(router_logits: Tensor, top_k: int, renormalize: bool, scoring: str) -> tuple[Tensor, Tensor]:
    """As kernels.ops.moe_route for the scoring "softmax"; promises nothing about ties."""
    assert scoring == "softmax", scoring
    weights, expert_ids, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(router_logits.float(), None, top_k)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), expert_ids


def moe_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """As kernels.ops.moe_experts; the weights of the sum are rounded to x's type."""
    num_experts, (num_rows, top_k) = len(gate_up), expert_ids.shape
    rows, places, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        expert_ids.int(),
        active_num=num_rows * top_k,
        expert_num=num_experts,
        expert_tokens_num_type=_COUNTS,
        expert_tokens_num_flag=True,
        quant_mode=-1,
        active_expert_range=[0, num_experts],
        row_idx_type=0,
    )
    hidden = torch.ops.npu.npu_swiglu(_grouped(rows, gate_up, counts), -1)
    return torch.ops.npu.npu_moe_finalize_routing(  # type: ignore[no-any-return]
        _grouped(hidden, down, counts), None, None, None, weights.to(x.dtype), places, None, _ROW_MAJOR
    )


def _grouped(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """rows [R, K], weights [E, N, K] -> [R, N]; counts [E] rows belong to each expert in turn."""
    return torch.ops.npu.npu_grouped_matmul(  # type: ignore[no-any-return]
        [rows], [weights.transpose(1, 2)], group_list=counts, split_item=_ONE_TENSOR, group_type=_BY_ROWS, group_list_type=_COUNTS
    )[0]
