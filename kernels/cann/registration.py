"""Puts the operators of CANN in the place of the torch implementations, and says which calls they cannot take.

What is not named here (products with a weight, look-ups, the greatest of a row) runs as torch-npu has it. A call that CANN's operator does
not take runs the torch implementation for accelerators.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels import ops
from kernels.accelerator import attention as accelerator_attention
from kernels.accelerator import rows as accelerator_rows
from kernels.cann import attention, experts, rows
from kernels.reference import moe
from kernels.reference import rows as reference_rows

_MAX_INNER = 65536  # of the last axis of what grouped products take
_MAX_GROUPS = 1024  # of grouped products
_MAX_CHOSEN = 1024  # experts of a row
_MAX_HEADS = 1000
_MAX_ROTATED = 896


def register(dispatch_key: str = "PrivateUse1") -> torch.library.Library:
    """Serve a kind of device, named by its dispatch key, from now on; the operators are gone again when the result is destroyed."""
    library = torch.library.Library(ops.NAMESPACE, "IMPL", dispatch_key)  # type: ignore[no-untyped-call]
    for name, operator in operators().items():
        library.impl(name, operator)  # type: ignore[no-untyped-call]
    return library


def operators() -> dict[str, Callable[..., Any]]:
    """What serves each operator that is not left to torch-npu."""
    choices: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., bool]]] = {
        "rms_norm": (rows.rms_norm, accelerator_rows.rms_norm, _takes_rows),
        "add_rms_norm": (rows.add_rms_norm, accelerator_rows.add_rms_norm, _takes_rows),
        "swiglu": (rows.swiglu, reference_rows.swiglu, _takes_pairs),
        "rotary": (rows.Rotary(), reference_rows.rotary, _takes_heads),
        "write_kv": (rows.write_kv, reference_rows.write_kv, _takes_rows),
        "paged_attention": (attention.PagedAttention(), accelerator_attention.paged_attention, _takes_attention),
        "moe_route": (experts.moe_route, moe.moe_route, _takes_router),
        "moe_experts": (experts.moe_experts, accelerator_rows.moe_experts, _takes_experts),
    }
    return {name: _either(*choice) for name, choice in choices.items()}


def _either(kernel: Callable[..., Any], torch_implementation: Callable[..., Any], takes: Callable[..., bool]) -> Callable[..., Any]:
    return lambda *args: (kernel if takes(*args) else torch_implementation)(*args)


def _takes_rows(x: Tensor, *_: Any) -> bool:
    return x.dtype == torch.bfloat16 and x.numel() > 0


def _takes_pairs(gate_up: Tensor) -> bool:
    return _takes_rows(gate_up) and gate_up.is_contiguous()


def _takes_heads(q: Tensor, k: Tensor, *_: Any) -> bool:
    return _takes_rows(q) and max(q.shape[1], k.shape[1]) < _MAX_HEADS and q.shape[2] < _MAX_ROTATED


def _takes_attention(  # noqa: PLR0913, PLR0917 - a batch is this many columns
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    query_starts: Tensor,
    positions: Tensor,
    scale: float,
    window: int = 0,
) -> bool:
    return _takes_rows(q) and attention.takes(q, k_cache, page_table, window)


def _takes_router(router_logits: Tensor, top_k: int, renormalize: bool, scoring: str) -> bool:
    return router_logits.numel() > 0 and scoring == "softmax" and top_k <= _MAX_CHOSEN


def _takes_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> bool:
    return _takes_rows(x) and max(*gate_up.shape, *down.shape) < _MAX_INNER and len(gate_up) <= _MAX_GROUPS
