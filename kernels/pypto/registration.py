"""Puts the PyPTO kernels in the place of the torch implementations, and says which calls they cannot take.

A call that a kernel cannot take runs the torch implementation for accelerators: slower, but batch-invariant too. Of these only that of the
experts waits for the device, and cannot be captured in a graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import ops
from kernels.accelerator import attention
from kernels.accelerator import rows as accelerator_rows
from kernels.ops import qk_rope_kv_write_in_parts
from kernels.pypto.linear import linear
from kernels.pypto.lookup import argmax, embedding
from kernels.pypto.moe_experts import moe_experts
from kernels.pypto.moe_route import moe_route
from kernels.pypto.norm import add_rms_norm, rms_norm
from kernels.pypto.paged_attention import paged_attention
from kernels.pypto.qk_rope_kv_write import lay_out_head_norms, qk_rope_kv_write
from kernels.pypto.swiglu import swiglu
from kernels.pypto.top_k import top_k
from kernels.reference import moe, rows

_MAX_ELEMENTS = (1 << 31) - 1
_ALIGNED = 16  # bf16 numbers in 32 bytes, which rows of a tile begin at multiples of


@dataclass(frozen=True, slots=True)
class Operator:
    """The two implementations of an operator, and which calls the first one takes."""

    kernel: Callable[..., Any]
    torch_implementation: Callable[..., Any]
    takes: Callable[..., bool]

    def __call__(self, *args: Any) -> Any:
        """Run the implementation that takes the call."""
        return (self.kernel if _can_be_addressed(args) and self.takes(*args) else self.torch_implementation)(*args)


def register(dispatch_key: str = "PrivateUse1") -> torch.library.Library:
    """Serve a kind of device, named by its dispatch key, from now on; the kernels are gone again when the result is destroyed."""
    library = torch.library.Library(ops.NAMESPACE, "IMPL", dispatch_key)
    for name, operator in OPERATORS.items():
        library.impl(name, operator)
    library.impl("lay_out_head_norms", lay_out_head_norms)
    return library


def _can_be_addressed(args: tuple[Any, ...]) -> bool:
    """PyPTO 0.2.0 takes the memory of any tensor for contiguous, and counts elements in 32 bits; it checks neither."""
    return all(arg.is_contiguous() and arg.numel() <= _MAX_ELEMENTS for arg in args if isinstance(arg, Tensor))


def _takes_rows(x: Tensor, *_: Any) -> bool:
    return x.dtype == torch.bfloat16 and x.numel() > 0 and x.shape[-1] % _ALIGNED == 0


def _takes_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return _takes_rows(x) and weight.shape[0] % _ALIGNED == 0


def _takes_swiglu(gate_up: Tensor) -> bool:
    return _takes_rows(gate_up) and gate_up.shape[-1] % (2 * _ALIGNED) == 0


def _takes_embedding(ids: Tensor, table: Tensor) -> bool:
    return _takes_rows(table) and ids.numel() > 0


def _takes_logits(logits: Tensor, *_: Any) -> bool:
    return logits.dtype == torch.float32 and logits.numel() > 0


def _takes_attention(
    q: Tensor, k_cache: Tensor, _v: Tensor, _table: Tensor, _starts: Tensor, _positions: Tensor, _scale: float, window: int = 0
) -> bool:
    page_tokens = k_cache.shape[1]
    # In place of a page before a window stands one of the window: it has to be full.
    return _takes_rows(q) and page_tokens % _ALIGNED == 0 and page_tokens <= 128 and (not window or window >= page_tokens)


def _qk_rope_kv_write_in_parts(qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, *others: Any) -> Tensor:
    """With weights that are laid out for the kernel."""
    q_weights, k_weights = (None if norm is None else norm.to(qkv.dtype) for norm in (q_norm, k_norm))
    return qk_rope_kv_write_in_parts(qkv, q_weights, k_weights, *others)


OPERATORS = {
    "rms_norm": Operator(rms_norm, accelerator_rows.rms_norm, _takes_rows),
    "add_rms_norm": Operator(add_rms_norm, accelerator_rows.add_rms_norm, _takes_rows),
    "swiglu": Operator(swiglu, rows.swiglu, _takes_swiglu),
    "linear": Operator(linear, accelerator_rows.linear, _takes_linear),
    "embedding": Operator(embedding, rows.embedding, _takes_embedding),
    "argmax": Operator(argmax, rows.argmax, _takes_logits),
    "top_k": Operator(top_k, rows.top_k, _takes_logits),
    "qk_rope_kv_write": Operator(qk_rope_kv_write, _qk_rope_kv_write_in_parts, _takes_rows),
    "paged_attention": Operator(paged_attention, attention.paged_attention, _takes_attention),
    "moe_route": Operator(moe_route, moe.moe_route, _takes_rows),
    "moe_experts": Operator(moe_experts, accelerator_rows.moe_experts, _takes_rows),
}
