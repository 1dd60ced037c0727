"""The launches that are priced: operators of kernels.pypto at the shapes of real models, with the least work that each could be."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_PAGE_TOKENS = 128
_POOL_PAGES = 2048  # of a KV cache: 512 MiB of keys in a layer of 8 kv heads


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A call of an operator."""

    name: str
    operator: str  # "module:function" in kernels.pypto
    arguments: Callable[[], tuple[Any, ...]]
    num_bytes: int  # that have to be read and written once
    num_operations: int = 0  # of the cube cores: two for a product and its addition


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Qwen3."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    layers: int
    head_dim: int = 128
    vocab: int = 151936


#: New tokens of a sequence, and its length with them.
PREFILLS = ((128, 128), (512, 512), (512, 2048), (128, 4096), (2048, 2048))

QWEN3_0_6B = ModelShape("qwen3-0.6b", 1024, 3072, 16, 8, 28)
QWEN3_14B = ModelShape("qwen3-14b", 5120, 17408, 40, 8, 40)


def all_cases() -> list[KernelCase]:
    """Every case; names are unique."""
    return [case for model in (QWEN3_0_6B, QWEN3_14B) for rows in (8, 32, 128) for case in _layer(model, rows)] + [*_ends(), *_attention()]


def _layer(model: ModelShape, rows: int) -> Iterator[KernelCase]:
    """What a layer does apart from attention. Below 16 rows nothing changes: a row costs what 16 do."""
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    place = f"{model.name}/{rows}"
    yield _linear(f"qkv/{place}", rows, qkv, model.hidden)
    yield _linear(f"output/{place}", rows, model.hidden, model.heads * model.head_dim)
    yield _linear(f"gate-up/{place}", rows, 2 * model.inner, model.hidden)
    yield _linear(f"down/{place}", rows, model.hidden, model.inner)
    hidden = rows * model.hidden
    yield KernelCase(
        f"add-rms-norm/{place}",
        "norm:add_rms_norm",
        lambda: (_zeros(rows, model.hidden), _zeros(rows, model.hidden), _zeros(model.hidden), 1e-6),
        2 * (4 * hidden + model.hidden),
    )
    yield KernelCase(f"swiglu/{place}", "swiglu:swiglu", lambda: (_zeros(rows, 2 * model.inner),), 2 * 3 * rows * model.inner)
    yield KernelCase(
        f"qk-rope-kv-write/{place}",
        "qk_rope_kv_write:qk_rope_kv_write",
        lambda: _rope_arguments(model, rows),
        2 * (2 * rows * qkv) + 4 * rows * model.head_dim,
    )


def _ends() -> Iterator[KernelCase]:
    small, hidden = QWEN3_0_6B, QWEN3_0_6B.hidden
    yield KernelCase(
        "rms-norm/qwen3-0.6b/32", "norm:rms_norm", lambda: (_zeros(32, hidden), _zeros(hidden), 1e-6), 2 * (64 * hidden + hidden)
    )
    yield KernelCase(
        "embedding/qwen3-0.6b/32",
        "lookup:embedding",
        lambda: (torch.arange(32) * 4000, _zeros(small.vocab, hidden)),
        2 * 2 * 32 * hidden,
    )
    yield _linear("lm-head/qwen3-0.6b/8", 8, small.vocab, hidden)
    yield _linear("lm-head/qwen3-0.6b/128", 128, small.vocab, hidden)
    yield _linear("a-quarter-of-lm-head/qwen3-14b/8", 8, small.vocab // 4, QWEN3_14B.hidden)
    yield KernelCase("argmax/qwen3/8", "lookup:argmax", lambda: (torch.zeros(8, small.vocab),), 4 * 8 * small.vocab)


def _attention() -> Iterator[KernelCase]:
    for model in (QWEN3_0_6B, QWEN3_14B):
        yield _attend(f"decode-attention/{model.name}/8-of-1024", model, [1] * 8, [1024] * 8)
        yield _attend(f"decode-attention/{model.name}/32-of-512", model, [1] * 32, [512] * 32)
        for rows, length in PREFILLS:
            yield _attend(f"prefill-attention/{model.name}/{rows}-of-{length}", model, [rows], [length])
    yield _attend("mixed-attention/qwen3-0.6b/64-of-256-and-8-of-512", QWEN3_0_6B, [64] + [1] * 8, [256] + [512] * 8)


def _linear(name: str, rows: int, out_features: int, in_features: int) -> KernelCase:
    return KernelCase(
        name,
        "linear:linear",
        lambda: (_zeros(rows, in_features), _zeros(out_features, in_features)),
        2 * (rows * in_features + out_features * in_features + rows * out_features),
        2 * rows * out_features * in_features,
    )


def _rope_arguments(model: ModelShape, rows: int) -> tuple[Any, ...]:
    width = model.head_dim
    cache = torch.empty(_POOL_PAGES, _PAGE_TOKENS, model.kv_heads, width, dtype=torch.bfloat16)  # untouched memory costs nothing
    table = torch.zeros(4096, width // 2)
    qkv = _zeros(rows, model.heads + 2 * model.kv_heads, width)
    slots = torch.arange(rows) * (_POOL_PAGES * _PAGE_TOKENS // rows)  # each in a sequence of its own, all over the pool
    norms = (torch.zeros(1, heads, width) for heads in (model.heads, model.kv_heads))
    return qkv, *norms, 1e-6, torch.arange(rows), table, table.clone(), cache, torch.empty_like(cache), slots


def _attend(name: str, model: ModelShape, new_tokens: list[int], lengths: list[int]) -> KernelCase:
    """Sequences of `lengths` tokens, the last `new_tokens` of which are the rows."""
    rows, heads = sum(new_tokens), model.heads * model.head_dim
    cached = 2 * sum(lengths) * model.kv_heads * model.head_dim
    seen = sum(sum(range(length - new + 1, length + 1)) for new, length in zip(new_tokens, lengths, strict=True))
    return KernelCase(
        name,
        "paged_attention:paged_attention",
        lambda: _attention_arguments(model, new_tokens, lengths),
        2 * (2 * rows * heads + cached),
        4 * seen * heads,
    )


def _attention_arguments(model: ModelShape, new_tokens: list[int], lengths: list[int]) -> tuple[Any, ...]:
    pages_of = [-(-length // _PAGE_TOKENS) for length in lengths]
    table = torch.full((len(lengths), max(pages_of)), -1, dtype=torch.int32)
    for line, count in enumerate(pages_of):
        table[line, :count] = torch.arange(sum(pages_of[:line]), sum(pages_of[: line + 1]))
    cache = _zeros(sum(pages_of), _PAGE_TOKENS, model.kv_heads, model.head_dim)
    starts = torch.tensor([0, *new_tokens]).cumsum(0).int()
    positions = torch.cat([torch.arange(length - new, length) for new, length in zip(new_tokens, lengths, strict=True)])
    query = _zeros(sum(new_tokens), model.heads, model.head_dim)
    return query, cache, cache.clone(), table, starts, positions, model.head_dim**-0.5, 0


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)
