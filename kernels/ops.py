"""The operators of the models: what the worker calls.

Each is a `torch.library` operator of the namespace `pypto_serving`. Its torch form serves every device; a form registered for a
device (C++ under CPU, PyPTO under PrivateUse1) takes its place there, whenever it is loaded. A row of a result never depends on
the other rows, bit for bit, within one `kernel_set()`.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.cpu import extension
from kernels.reference import activation, attention, cache, lookup, moe, norm
from kernels.reference import rotary as rotary_form

NAMESPACE = "pypto_serving"
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def _define(schema: str, form: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines an operator by its schema, torch form and shape rule, and returns it."""
    name = schema.partition("(")[0]
    _library.define(schema)  # type: ignore[no-untyped-call]
    _library.impl(name, form, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


_rms_norm = _define(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    norm.rms_norm,
    lambda x, weight, eps: x.new_empty(x.shape),
)
_add_rms_norm = _define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    norm.add_rms_norm,
    lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
)
_rotary = _define(
    "rotary(Tensor q, Tensor k, Tensor positions, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
    rotary_form.rotary,
    lambda q, k, positions, cos, sin: (q.new_empty(q.shape), k.new_empty(k.shape)),
)
_write_kv = _define(
    "write_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()",
    cache.write_kv,
    lambda k, v, k_cache, v_cache, slots: None,
)
_paged_attention = _define(
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor query_starts, Tensor positions, float scale, "
    "int window=0) -> Tensor",
    attention.paged_attention,
    lambda q, *_: q.new_empty(q.shape),
)
_swiglu = _define(
    "swiglu(Tensor gate_up) -> Tensor",
    activation.swiglu,
    lambda gate_up: gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2),
)
_moe_route = _define(
    "moe_route(Tensor router_logits, int top_k, bool renormalize, str scoring) -> (Tensor, Tensor)",
    moe.moe_route,
    lambda router_logits, top_k, renormalize, scoring: (
        router_logits.new_empty(router_logits.shape[0], top_k, dtype=torch.float32),
        router_logits.new_empty(router_logits.shape[0], top_k, dtype=torch.int64),
    ),
)
_embedding = _define(
    "embedding(Tensor ids, Tensor table) -> Tensor",
    lookup.embedding,
    lambda ids, table: table.new_empty(ids.shape[0], table.shape[1]),
)
_argmax = _define(
    "argmax(Tensor logits) -> Tensor",
    lookup.argmax,
    lambda logits: logits.new_empty(logits.shape[0], dtype=torch.int64),
)
_cpu_forms = extension.load()

# The packed weights fit no schema: PackedExperts decides by their device, and what it calls is dispatched above.
moe_experts = moe.moe_experts


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [.., H], weight [H] -> [.., H]; computed in fp32, rounded to x's dtype before the weight."""
    return _rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H], weight [H] -> (rms_norm(x + residual), x + residual)."""
    return _add_rms_norm(x, residual, weight, eps)  # type: ignore[no-any-return]


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [T, Hq, D] and k [T, Hk, D] rotated to positions [T] by cos and sin [L, D/2] (fp32), half-split layout."""
    return _rotary(q, k, positions, cos, sin)  # type: ignore[no-any-return]


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts rows k and v [T, Hk, D] at slots [T] int64 (page * page_tokens + offset) of the caches [pages, page_tokens, Hk, D]."""
    _write_kv(k, v, k_cache, v_cache, slots)


def paged_attention(  # noqa: PLR0913, PLR0917 - a batch is this many columns
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int = 0
) -> Tensor:
    """Causal attention of q [T, Hq, D] over the caches [pages, page_tokens, Hk, D], which hold the rows' own keys already.

    Rows query_starts[b]:query_starts[b+1] (int32) belong to line b of page_table [B, P] (int32, -1 for no page); a row at
    position p (positions [T] int64) sees keys 0..p, or the last `window` of them if window > 0. Other rows come out zero.
    """
    return _paged_attention(q, k_cache, v_cache, page_table, query_starts, positions, scale, window)  # type: ignore[no-any-return]


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids [T] int64, table [V, H] -> [T, H]."""
    return _embedding(ids, table)  # type: ignore[no-any-return]


def argmax(logits: Tensor) -> Tensor:
    """logits [S, V] -> [S] int64, the lowest id where the greatest value occurs more than once."""
    return _argmax(logits)  # type: ignore[no-any-return]


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gates first -> silu(gate) * up [T, I]."""
    return _swiglu(gate_up)  # type: ignore[no-any-return]


def moe_route(router_logits: Tensor, top_k: int, renormalize: bool, scoring: Literal["softmax", "sigmoid"]) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] -> (weights [T, k] fp32, expert ids [T, k] int64), best first, ties to the lowest id."""
    return _moe_route(router_logits, top_k, renormalize, scoring)  # type: ignore[no-any-return]


def kernel_set() -> str:
    """Which forms are in use, as one word for the numerics id: results may differ in the last bits between two sets."""
    return f"cpp-{_cpu_forms}" if _cpu_forms else "torch"
