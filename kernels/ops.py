"""The operators of the models: what the worker calls.

Each is a `torch.library` operator of the namespace `pypto_serving`. Its torch implementation serves every device; one registered for
a device (C++ under CPU, torch of its own under CUDA, PyPTO under PrivateUse1) takes its place there, whenever it is loaded. A row of a
result never depends on the other rows, bit for bit, within one `kernel_set()`; for products of matrices see kernels.linear.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.accelerator import attention as accelerator_attention
from kernels.accelerator import rows as accelerator_rows
from kernels.cpu import extension
from kernels.reference import attention, moe, quantized, rows

NAMESPACE = "pypto_serving"
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]


def _define(
    schema: str, implementation: Callable[..., Any], fake: Callable[..., Any], accelerator: Callable[..., Any] | None = None
) -> Any:
    """Defines an operator by its schema, torch implementation, shape rule, and that for accelerators if they need their own; returns it."""
    name = schema.partition("(")[0]
    _library.define(schema)  # type: ignore[no-untyped-call]
    _library.impl(name, implementation, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    if accelerator is not None:
        _library.impl(name, accelerator, "CUDA")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _no_shapes(*_: Any) -> Any:
    raise NotImplementedError("run when a model is loaded, never traced")


_rms_norm = _define(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    rows.rms_norm,
    lambda x, weight, eps: x.new_empty(x.shape),
    accelerator_rows.rms_norm,
)
_add_rms_norm = _define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    rows.add_rms_norm,
    lambda x, residual, weight, eps: (x.new_empty(x.shape), x.new_empty(x.shape)),
    accelerator_rows.add_rms_norm,
)
_finite_rows = _define(
    "finite_rows(Tensor x) -> Tensor",
    rows.finite_rows,
    lambda x: x.new_empty(x.shape[0], dtype=torch.bool),
)
_rotary = _define(
    "rotary(Tensor q, Tensor k, Tensor positions, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
    rows.rotary,
    lambda q, k, positions, cos, sin: (q.new_empty(q.shape), k.new_empty(k.shape)),
)
_write_kv = _define(
    "write_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()",
    rows.write_kv,
    lambda k, v, k_cache, v_cache, slots: None,
)
_paged_attention = _define(
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor query_starts, Tensor positions, float scale, "
    "int window=0) -> Tensor",
    attention.paged_attention,
    lambda q, *_: q.new_empty(q.shape),
    accelerator_attention.paged_attention,
)
_swiglu = _define(
    "swiglu(Tensor gate_up) -> Tensor",
    rows.swiglu,
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
    rows.embedding,
    lambda ids, table: table.new_empty(ids.shape[0], table.shape[1]),
)
_argmax = _define(
    "argmax(Tensor logits) -> Tensor",
    rows.argmax,
    lambda logits: logits.new_empty(logits.shape[0], dtype=torch.int64),
)
_top_k = _define(
    "top_k(Tensor values, int count) -> Tensor",
    rows.top_k,
    lambda values, count: values.new_empty(values.shape[0], count),
)


def greatest_in_parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The torch implementation of greatest, whose parts are dispatched one by one."""
    return logits.amax(dim=-1).float(), argmax(logits)


_greatest = _define(
    "greatest(Tensor logits) -> (Tensor, Tensor)",
    greatest_in_parts,
    lambda logits: (logits.new_empty(logits.shape[0], dtype=torch.float32), logits.new_empty(logits.shape[0], dtype=torch.int64)),
)
_linear = _define(
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    rows.linear,
    lambda x, weight, bias: x.new_empty(x.shape[0], weight.shape[0]),
    accelerator_rows.linear,
)
_moe_experts = _define(
    "moe_experts(Tensor x, Tensor weights, Tensor expert_ids, Tensor gate_up, Tensor down) -> Tensor",
    moe.moe_experts,
    lambda x, *_: x.new_empty(x.shape),
    accelerator_rows.moe_experts,
)
_int8_linear = _define(
    "int8_linear(Tensor x, Tensor panels, Tensor scales, Tensor offsets, Tensor? bias, ScalarType dtype, bool brgemm) -> Tensor",
    quantized.int8_linear,
    lambda x, panels, scales, offsets, bias, dtype, brgemm: x.new_empty(x.shape[0], scales.shape[0], dtype=dtype),
)
_int8_embedding = _define(
    "int8_embedding(Tensor ids, Tensor panels, Tensor scales, int width, ScalarType dtype) -> Tensor",
    quantized.int8_embedding,
    lambda ids, panels, scales, width, dtype: panels.new_empty(ids.shape[0], width, dtype=dtype),
)
_int4_linear = _define(
    "int4_linear(Tensor x, Tensor panels, Tensor scales, Tensor? zeros, Tensor? bias, int width, ScalarType dtype) -> Tensor",
    quantized.int4_linear,
    lambda x, panels, scales, zeros, bias, width, dtype: x.new_empty(x.shape[0], width, dtype=dtype),
)
_quantize_int8 = _define("quantize_int8(Tensor weight) -> (Tensor, Tensor)", quantized.quantize_int8, _no_shapes)
_quantize_int4 = _define("quantize_int4(Tensor weight, int group) -> (Tensor, Tensor, Tensor)", quantized.quantize_int4, _no_shapes)
_pack_int8 = _define("pack_int8(Tensor levels) -> (Tensor, Tensor)", quantized.pack_int8, _no_shapes)
_pack_int4 = _define("pack_int4(Tensor levels) -> Tensor", quantized.pack_int4, _no_shapes)


def qk_rope_kv_write_in_parts(  # noqa: PLR0913, PLR0917 - see below
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """The torch implementation of qk_rope_kv_write, whose parts are dispatched one by one."""
    num_kv_heads = k_cache.shape[2]
    query, key, value = torch.split(qkv, [qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        query, key = rms_norm(query, q_norm, eps), rms_norm(key, k_norm, eps)
    query, key = rotary(query, key, positions, cos, sin)
    write_kv(key, value, k_cache, v_cache, slots)
    return query


_lay_out_head_norms = _define(
    "lay_out_head_norms(Tensor q_norm, Tensor k_norm, int num_heads, int num_kv_heads) -> (Tensor, Tensor)",
    lambda q_norm, k_norm, num_heads, num_kv_heads: (q_norm.clone(), k_norm.clone()),
    _no_shapes,
)
_qk_rope_kv_write = _define(
    "qk_rope_kv_write(Tensor qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor positions, Tensor cos, Tensor sin, "
    "Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> Tensor",
    qk_rope_kv_write_in_parts,
    lambda qkv, q_norm, k_norm, eps, positions, cos, sin, k_cache, *_: qkv.new_empty(
        qkv.shape[0], qkv.shape[1] - 2 * k_cache.shape[2], qkv.shape[2]
    ),
)
_cpu_kernels = extension.load()


def index_dtype(device_type: str) -> torch.dtype:
    """The type of ids, positions and slots that the operators of a kind of device take: 32 bits on an NPU, elsewhere 64."""
    return torch.int32 if device_type == "npu" else torch.int64


def lay_out_head_norms(q_norm: Tensor, k_norm: Tensor, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor]:
    """q_norm and k_norm [D] as qk_rope_kv_write takes them on their device: once, when a model is loaded."""
    return _lay_out_head_norms(q_norm, k_norm, num_heads, num_kv_heads)  # type: ignore[no-any-return]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [.., H], weight [H] -> [.., H]; computed in fp32, rounded to x's dtype before the weight."""
    return _rms_norm(x, weight, eps)  # type: ignore[no-any-return]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H], weight [H] -> (rms_norm(x + residual), x + residual)."""
    return _add_rms_norm(x, residual, weight, eps)  # type: ignore[no-any-return]


def finite_rows(x: Tensor) -> Tensor:
    """x [T, H] -> [T] bool: whether all of a row is finite."""
    return _finite_rows(x)  # type: ignore[no-any-return]


def rotary(q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [T, Hq, D] and k [T, Hk, D] rotated to positions [T] by cos and sin [L, D/2] (fp32), half-split layout."""
    return _rotary(q, k, positions, cos, sin)  # type: ignore[no-any-return]


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts rows k and v [T, Hk, D] at slots [T] (page * page_tokens + offset) of the caches [pages, page_tokens, Hk, D]."""
    _write_kv(k, v, k_cache, v_cache, slots)


def qk_rope_kv_write(  # noqa: PLR0913, PLR0917 - all that stands between a projection and attention
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """qkv [T, Hq + 2 Hk, D] -> queries [T, Hq, D]; puts keys and values at `slots` of the caches.

    What rms_norm of the heads by q_norm and k_norm, rotary and write_kv do one by one. The norms' weights come from lay_out_head_norms;
    None: there are no norms.
    """
    # On a CPU the parts are dispatched anyhow, and a call through Python's side of the dispatcher costs as much as a small part.
    implementation = qk_rope_kv_write_in_parts if qkv.is_cpu else _qk_rope_kv_write
    return implementation(qkv, q_norm, k_norm, eps, positions, cos, sin, k_cache, v_cache, slots)


def paged_attention(  # noqa: PLR0913, PLR0917 - a batch is this many columns
    q: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, query_starts: Tensor, positions: Tensor, scale: float, window: int = 0
) -> Tensor:
    """Causal attention of q [T, Hq, D] over the caches [pages, page_tokens, Hk, D], which hold the rows' own keys already.

    Rows query_starts[b]:query_starts[b+1] (int32) belong to line b of page_table [B, P] (int32, -1 for no page); a row at
    position p (positions [T]) sees keys 0..p, or the last `window` of them if window > 0. Other rows come out zero, and are at position -1
    where there are as many rows as sequences: row b is then that of sequence b, or of none.
    """
    return _paged_attention(q, k_cache, v_cache, page_table, query_starts, positions, scale, window)  # type: ignore[no-any-return]


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids [T], table [V, H] -> [T, H]."""
    return _embedding(ids, table)  # type: ignore[no-any-return]


def argmax(logits: Tensor) -> Tensor:
    """logits [S, V] -> [S] int64, the lowest id where the greatest value occurs more than once."""
    return _argmax(logits)  # type: ignore[no-any-return]


def greatest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [S, V] -> (greatest values [S] fp32, argmax [S]); the value is NaN where a row has one, its id then means nothing."""
    return _greatest(logits)  # type: ignore[no-any-return]


def top_k(values: Tensor, count: int) -> Tensor:
    """values [S, V] fp32, count <= V -> the `count` greatest values of each row, falling [S, count]."""
    return _top_k(values, count)  # type: ignore[no-any-return]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N] for weight [N, K] as it is stored; torch itself does not promise batch invariance."""
    return _linear(x, weight, bias)  # type: ignore[no-any-return]


def int8_linear(  # noqa: PLR0913, PLR0917 - what a weight is made of
    x: Tensor, panels: Tensor, scales: Tensor, offsets: Tensor, bias: Tensor | None, dtype: torch.dtype, brgemm: bool
) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N] of type `dtype`, for weight = levels * scales [N], packed by reference.quantized.pack_int8.

    A row is quantized to 8 bits by its largest magnitude. `offsets` int32: 128 times the sum of an output's levels, bias [N] fp32.
    `brgemm` lets torch's micro-kernel compute the sums of many rows, which are the same integers.
    """
    return _int8_linear(x, panels, scales, offsets, bias, dtype, brgemm)  # type: ignore[no-any-return]


def int8_embedding(ids: Tensor, panels: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """ids [T] int64 -> those rows [T, width] of the weight that int8_linear takes."""
    return _int8_embedding(ids, panels, scales, width, dtype)  # type: ignore[no-any-return]


def int4_linear(  # noqa: PLR0913, PLR0917 - what a weight is made of
    x: Tensor, panels: Tensor, scales: Tensor, zeros: Tensor | None, bias: Tensor | None, width: int, dtype: torch.dtype
) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, width] of type `dtype`, for weight = (levels - zeros) * scales as reference.quantized packs it.

    A row is quantized to 8 bits group by group, by the largest magnitude of each; the groups of a sum are added in fp32 in their order.
    """
    return _int4_linear(x, panels, scales, zeros, bias, width, dtype)  # type: ignore[no-any-return]


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> levels [N, K] int8 and scales [N] fp32, symmetric: the largest magnitude of an output becomes 127."""
    return _quantize_int8(weight)  # type: ignore[no-any-return]


def quantize_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight [N, K] -> levels [N, K] uint8 in 0 .. 15, scales [N, K / group] bfloat16 and zero points uint8; K % group == 0.

    The range of a group, with zero in it, becomes 0 .. 15.
    """
    return _quantize_int4(weight, group)  # type: ignore[no-any-return]


def pack_int8(levels: Tensor) -> tuple[Tensor, Tensor]:
    """levels [N, K] int8 -> panels [N / 32, K / 4, 32, 4], N rounded up to 32 and K to 64; and 128 times the sum of each output's."""
    return _pack_int8(levels)  # type: ignore[no-any-return]


def pack_int4(levels: Tensor) -> Tensor:
    """levels [N, K] uint8 in 0 .. 15, K % 8 == 0 -> panels [N / 32, K / 8, 32, 4], N rounded up.

    Of eight neighbouring inputs the first four are in the low halves of four bytes, the others in the high ones.
    """
    return _pack_int4(levels)  # type: ignore[no-any-return]


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2I], gates first -> silu(gate) * up [T, I]."""
    return _swiglu(gate_up)  # type: ignore[no-any-return]


def moe_route(router_logits: Tensor, top_k: int, renormalize: bool, scoring: Literal["softmax", "sigmoid"]) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] -> (weights [T, k] fp32, expert ids [T, k]), best first, ties to the lowest id."""
    return _moe_route(router_logits, top_k, renormalize, scoring)  # type: ignore[no-any-return]


def moe_experts(x: Tensor, weights: Tensor, expert_ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x [T, H], weights and expert_ids [T, k] as moe_route gives them, gate_up [E, 2I, H], down [E, H, I] -> [T, H].

    The weighted experts of a row, added in its top-k order. The torch implementation does not promise batch invariance, see linear.
    """
    return _moe_experts(x, weights, expert_ids, gate_up, down)  # type: ignore[no-any-return]


def can_capture_experts(device_type: str) -> bool:
    """Whether moe_experts runs on a kind of device without waiting for it; in torch the host has to know how many rows an expert has."""
    return device_type == "npu" or (device_type == "cuda" and accelerator_rows.triton_products() is not None)


def has_float64(device_type: str) -> bool:
    """Whether a kind of device computes in float64; an NPU takes float32 in its place and does not say so."""
    return device_type != "npu"


def kernel_set(device_type: str = "cpu", npu_kernels: str | None = None) -> str:
    """The kernels that serve a kind of device, as one word for the numerics id: two sets may differ in the last bits of their results.

    Of an NPU the caller says which: "pypto" or "cann".
    """
    if device_type == "npu":
        assert npu_kernels is not None, "which kernels serve the NPU?"
        kernels = f"pypto-{version('pypto')}" if npu_kernels == "pypto" else npu_kernels
        return f"{kernels}-torch-npu-{version('torch-npu')}"
    if device_type == "cuda" and accelerator_rows.triton_products() is not None:
        return f"triton-{version('triton')}"
    return f"cpp-{_cpu_kernels}" if device_type == "cpu" and _cpu_kernels else "torch"
