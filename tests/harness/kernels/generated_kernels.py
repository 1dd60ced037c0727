"""Has code generated for the operators of published models, in processes of their own: see tests/kernels/pypto/test_code_generation.py."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

_PAGE_TOKENS = 128
_DECODE_ROWS = 8
_LENGTH = 1024  # tokens of a sequence of a decode step
_VOCABULARY = 151936  # Qwen's, the largest


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model, of its `config.json`."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    has_biases: bool = False
    has_head_norms: bool = False
    num_experts: int = 0
    experts_per_token: int = 0


MODELS = {
    "smollm2-135m": ModelShape(576, 1536, 9, 3, 64),
    "smollm2-360m": ModelShape(960, 2560, 15, 5, 64),
    "smollm2-1.7b": ModelShape(2048, 8192, 32, 32, 64),
    "qwen2.5-7b": ModelShape(3584, 18944, 28, 4, 128, has_biases=True),
    "llama-3.1-8b": ModelShape(4096, 14336, 32, 8, 128),
    "qwen3-0.6b": ModelShape(1024, 3072, 16, 8, 128, has_head_norms=True),
    "qwen3-1.7b": ModelShape(2048, 6144, 16, 8, 128, has_head_norms=True),
    "qwen3-4b": ModelShape(2560, 9728, 32, 8, 128, has_head_norms=True),
    "qwen3-8b": ModelShape(4096, 12288, 32, 8, 128, has_head_norms=True),
    "qwen3-14b": ModelShape(5120, 17408, 40, 8, 128, has_head_norms=True),
    "qwen3-32b": ModelShape(5120, 25600, 64, 8, 128, has_head_norms=True),
    "qwen3-30b-a3b": ModelShape(2048, 768, 32, 4, 128, has_head_norms=True, num_experts=128, experts_per_token=8),
}


def _bf16(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)  # code does not depend on values, and untouched memory costs nothing


def _product(out_features: int, in_features: int, rows: int, has_bias: bool = False) -> tuple[Any, ...]:
    return _bf16(rows, in_features), _bf16(out_features, in_features), _bf16(out_features) if has_bias else None


def _rope(model: ModelShape, rows: int) -> tuple[Any, ...]:
    cache = _bf16(1, _PAGE_TOKENS, model.kv_heads, model.head_dim)
    table = torch.empty(_LENGTH, model.head_dim // 2)
    norms = [torch.empty(1, heads, model.head_dim) if model.has_head_norms else None for heads in (model.heads, model.kv_heads)]
    qkv = _bf16(rows, model.heads + 2 * model.kv_heads, model.head_dim)
    return qkv, *norms, 1e-6, torch.arange(rows), table, table.clone(), cache, cache.clone(), torch.arange(rows)


def _attention(model: ModelShape, rows_of: list[int], length: int = _LENGTH) -> tuple[Any, ...]:
    """Sequences of `length` tokens of which the last `rows_of` are the rows."""
    pages = length // _PAGE_TOKENS
    cache = _bf16(len(rows_of) * pages, _PAGE_TOKENS, model.kv_heads, model.head_dim)
    table = torch.arange(len(rows_of) * pages, dtype=torch.int32).view(-1, pages)
    starts = torch.tensor([0, *rows_of]).cumsum(0).int()
    positions = torch.cat([torch.arange(length - count, length) for count in rows_of])
    query = _bf16(sum(rows_of), model.heads, model.head_dim)
    return query, cache, cache.clone(), table, starts, positions, model.head_dim**-0.5, 0


def _experts(model: ModelShape, rows: int) -> tuple[Any, ...]:
    chosen = torch.arange(model.experts_per_token).repeat(rows, 1)
    gate_up, down = _bf16(model.num_experts, 2 * model.inner, model.hidden), _bf16(model.num_experts, model.hidden, model.inner)
    return _bf16(rows, model.hidden), torch.zeros(rows, model.experts_per_token), chosen, gate_up, down


#: Per name: "module:function" of kernels.pypto, and the arguments of a call for some rows of a model.
OPERATORS: dict[str, tuple[str, Callable[[ModelShape, int], tuple[Any, ...]]]] = {
    "embedding": ("lookup:embedding", lambda model, rows: (torch.arange(rows), _bf16(1000, model.hidden))),
    "rms_norm": ("norm:rms_norm", lambda model, rows: (_bf16(rows, model.hidden), _bf16(model.hidden), 1e-6)),
    "add_rms_norm": (
        "norm:add_rms_norm",
        lambda model, rows: (_bf16(rows, model.hidden), _bf16(rows, model.hidden), _bf16(model.hidden), 1e-6),
    ),
    "qkv": (
        "linear:linear",
        lambda model, rows: _product((model.heads + 2 * model.kv_heads) * model.head_dim, model.hidden, rows, model.has_biases),
    ),
    "output": ("linear:linear", lambda model, rows: _product(model.hidden, model.heads * model.head_dim, rows)),
    "gate_up": ("linear:linear", lambda model, rows: _product(2 * model.inner, model.hidden, rows)),
    "down": ("linear:linear", lambda model, rows: _product(model.hidden, model.inner, rows)),
    "swiglu": ("swiglu:swiglu", lambda model, rows: (_bf16(rows, 2 * model.inner),)),
    "qk_rope_kv_write": ("qk_rope_kv_write:qk_rope_kv_write", _rope),
    "decode_attention": ("paged_attention:paged_attention", lambda model, rows: _attention(model, [1] * rows)),
    "prefill_attention": ("paged_attention:paged_attention", lambda model, rows: _attention(model, [rows * 16, 1])),
    "short_prefill_attention": ("paged_attention:paged_attention", lambda model, rows: _attention(model, [rows * 16], 2 * _PAGE_TOKENS)),
    "moe_route": (
        "moe_route:moe_route",
        lambda model, rows: (_bf16(rows, model.num_experts), model.experts_per_token, True, "softmax"),
    ),
    "moe_experts": ("moe_experts:moe_experts", _experts),
    "argmax": ("lookup:argmax", lambda model, rows: (torch.zeros(rows, _VOCABULARY),)),
    "top_k": ("top_k:top_k", lambda model, rows: (torch.zeros(rows, _VOCABULARY), 128)),
}

#: What the sampler calls, whatever the model.
OF_THE_SAMPLER = ("argmax", "top_k")


def operators_of(model: str) -> list[str]:
    """What a layer of the model calls, and the embedding."""
    dense, sparse = {"gate_up", "down", "swiglu"}, {"moe_route", "moe_experts"}
    others = dense if MODELS[model].num_experts else sparse
    return [name for name in OPERATORS if name not in {*others, *OF_THE_SAMPLER}]


def generate(model: str, operator: str, rows: int = _DECODE_ROWS) -> list[tuple[str, frozenset[str], int]]:
    """Of each kernel that the operator launches for a model: its name, what steers it before it waits, and its number of tasks."""
    from kernels.testing.code_generation import generated

    place, arguments = OPERATORS[operator]
    module, _, function = place.partition(":")
    with generated() as launches:
        getattr(import_module(f"kernels.pypto.{module}"), function)(*arguments(MODELS[model], rows))
    return [(code.name, code.read_before_wait(), len(code.tasks)) for code in launches]


def generate_what_does_not_fit() -> None:
    """Ask for the code of a kernel that no core can run."""
    from harness.kernels.imperfect_kernels import oversized_kernel

    from kernels.testing.code_generation import generated

    with generated():
        oversized_kernel(torch.empty(256, 1024), torch.empty(256, 1024))
