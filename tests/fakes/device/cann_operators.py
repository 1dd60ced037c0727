"""The operators of torch-npu 2.9.0 that kernels.cann calls: with its schemas, its documented limits, and torch for what they compute."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

_ATTENTION = (
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None, "
    "SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, Tensor? quant_scale1=None, "
    "Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? antiquant_scale=None, "
    "Tensor? antiquant_offset=None, Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
    "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, Tensor? block_table=None, "
    "Tensor? query_padding_size=None, Tensor? kv_padding_size=None, Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
    "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, "
    "int num_heads=1, float scale=1.0, int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout='BSH', "
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0, "
    "int key_antiquant_mode=0, int value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)"
)
_GROUPED = (
    "npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]? offset=None, "
    "Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None, Tensor? group_list=None, "
    "Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, Tensor[]? activation_quant_offset=None, "
    "int? split_item=0, int? group_type=None, int? group_list_type=0, int? act_type=0, int[]? tuning_config=None, "
    "ScalarType? output_dtype=None) -> Tensor[]"
)
_ROUTING = (
    "npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, int active_num=-1, "
    "int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, "
    "int quant_mode=0, int[2] active_expert_range=[], int row_idx_type=0) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    assert x.dtype == gamma.dtype == torch.bfloat16 and 2 <= x.dim() <= 8 and gamma.shape == x.shape[-1:]
    wide = x.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * scale * gamma.double()).to(x.dtype), scale.float()


def _add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    assert x1.shape == x2.shape and x1.dtype == x2.dtype
    return *_rms_norm(x1 + x2, gamma, epsilon), x1 + x2


def _swiglu(x: Tensor, dim: int = -1) -> Tensor:
    assert x.is_contiguous() and x.numel() and x.shape[dim] % 2 == 0 and x.dtype == torch.bfloat16
    first, second = x.double().chunk(2, dim)
    return (F.silu(first) * second).to(x.dtype)


def _rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    sequences, length, heads, width = x.shape
    assert rotary_mode == "half" and x.is_contiguous() and x.dtype == r1.dtype == r2.dtype == torch.bfloat16
    assert sequences < 1000 and heads < 1000 and width < 896 and width % 2 == 0
    assert r1.shape == r2.shape == (1, length, 1, width) and bool((r1.abs() <= 1).all() and (r2.abs() <= 1).all())
    low, high = x.float().chunk(2, -1)
    return (x.float() * r1.float() + torch.cat((-high, low), -1) * r2.float()).to(x.dtype)


def _scatter_nd_update_(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    assert indices.dtype in (torch.int32, torch.int64) and indices.dim() == 2 and indices.shape[1] == 1
    assert x.dtype == updates.dtype == torch.bfloat16 and updates.shape == (len(indices), *x.shape[1:])
    places = indices[:, 0].long()
    assert bool(((places >= 0) & (places < len(x))).all())
    x[places] = updates
    return x


def _attention(  # noqa: PLR0913 - its arguments
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """As it is called with the layout TND over pages BnBsH; anything else is refused, as an argument that nobody looked up would be."""
    assert not others and input_layout == "TND" and sparse_mode == 3
    assert query.dtype == key.dtype == value.dtype == torch.bfloat16 and all(t.is_contiguous() for t in (query, key, value))
    num_rows, heads, width = query.shape
    assert width in (64, 128) and heads == num_heads and heads % num_key_value_heads == 0 and heads // num_key_value_heads <= 64
    assert key.shape == value.shape and key.shape[1:] == (block_size, num_key_value_heads * width)
    assert block_size % 16 == 0 and 0 < block_size <= 512 and key.shape[2] <= 65535
    assert atten_mask is not None and atten_mask.dtype in (torch.bool, torch.int8, torch.uint8)
    assert torch.equal(atten_mask.bool(), torch.ones(2048, 2048, dtype=torch.bool).triu(1))
    assert actual_seq_lengths is not None and actual_seq_lengths_kv is not None and block_table is not None
    ends, lengths = list(actual_seq_lengths), list(actual_seq_lengths_kv)
    assert ends == sorted(ends) and ends[-1] == num_rows and len(ends) == len(lengths) == len(block_table) <= 4096
    assert block_table.dtype == torch.int32 and block_table.dim() == 2 and bool(((block_table >= 0) & (block_table < len(key))).all())
    assert block_table.shape[1] * block_size >= max(lengths)
    parts, first = [], 0
    for end, length, pages in zip(ends, lengths, block_table, strict=True):
        assert 0 < end - first <= length
        keys, values = (
            cache[pages.long()].view(-1, num_key_value_heads, width)[:length].double().repeat_interleave(heads // num_key_value_heads, 1)
            for cache in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[first:end].double(), keys) * scale
        hidden = torch.ones(end - first, length, dtype=torch.bool).triu(length - (end - first) + 1)
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values))
        first = end
    return torch.cat(parts).to(query.dtype), query.new_zeros(1, dtype=torch.float32)


def _top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    assert x.dtype == torch.float32 and x.dim() == 2 and finished is None and 0 < k <= min(x.shape[1], 1024)
    weights, ids = x.softmax(-1).topk(k)
    return weights, ids.int(), torch.zeros_like(ids, dtype=torch.int32)


def _init_routing(  # noqa: PLR0913 - its arguments
    x: Tensor,
    expert_idx: Tensor,
    *,
    active_num: int = -1,
    expert_num: int = -1,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = 0,
    active_expert_range: Sequence[int] = (),
    **others: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The type of the places of rows, 0, is the default, and not passed on."""
    assert not others and x.dim() == 2 and expert_idx.dtype == torch.int32 and expert_idx.shape[0] == len(x) and active_num >= 0
    assert (quant_mode, expert_tokens_num_type, expert_tokens_num_flag) == (-1, 1, True) and list(active_expert_range) == [0, expert_num]
    chosen = expert_idx.flatten().long()
    assert active_num == len(chosen) and bool((chosen < expert_num).all())
    order = torch.argsort(chosen, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    counts = torch.bincount(chosen, minlength=expert_num)
    return x[order // expert_idx.shape[1]], places.int(), counts, x.new_zeros(0, dtype=torch.float32)


def _grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    group_list: Tensor | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    **others: object,
) -> list[Tensor]:
    (rows,), (weights,) = x, weight
    assert not others and (split_item, group_type, group_list_type) == (2, 0, 1)
    assert rows.dim() == 2 and rows.is_contiguous() and weights.dim() == 3 and rows.dtype == weights.dtype == torch.bfloat16
    assert weights.is_contiguous() or weights.transpose(1, 2).is_contiguous(), "a weight may be transposed, but not cut"
    assert max(rows.shape[1], *weights.shape[1:]) < 65536 and len(weights) <= 1024
    assert group_list is not None and group_list.dtype == torch.int64 and group_list.shape == (len(weights),)
    assert int(group_list.sum()) == len(rows)
    products = [part.double() @ matrix.double() for part, matrix in zip(rows.split(group_list.tolist()), weights, strict=True)]
    return [torch.cat(products).to(rows.dtype)]


def _finalize_routing(  # noqa: PLR0913, PLR0917 - its arguments
    rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    places: Tensor,
    experts: Tensor | None,
    drop_pad_mode: int = 0,
) -> Tensor:
    assert skip1 is skip2 is bias is experts is None and drop_pad_mode == 2
    assert scales is not None and scales.dtype == rows.dtype and places.dtype == torch.int32 and places.shape == (scales.numel(),)
    outputs = rows[places.long()].view(*scales.shape, -1)
    return (outputs.double() * scales.double()[:, :, None]).sum(1).to(rows.dtype)


_OPERATORS: dict[str, Callable[..., object]] = {
    "npu_rms_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)": _rms_norm,
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)": _add_rms_norm,
    "npu_swiglu(Tensor input, int dim=-1) -> Tensor": _swiglu,
    "npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half') -> Tensor": _rotary_mul,
    "npu_scatter_nd_update_(Tensor(a!) input, Tensor indices, Tensor updates) -> Tensor(a!)": _scatter_nd_update_,
    _ATTENTION: _attention,
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)": _top_k_softmax,
    _ROUTING: _init_routing,
    _GROUPED: _grouped_matmul,
    "npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2, Tensor? bias, Tensor? scales, "
    "Tensor expanded_src_to_dst_row, Tensor? export_for_source_row, int? drop_pad_mode=0) -> Tensor": _finalize_routing,
}


@contextmanager
def cann_operators() -> Iterator[list[str]]:
    """Within it, torch.ops.npu has them for tensors of the CPU; the list receives the names of those that are called."""
    called: list[str] = []
    library = torch.library.Library("npu", "DEF")
    for schema, implementation in _OPERATORS.items():
        name = schema.partition("(")[0]

        def call(*args: object, name: str = name, implementation: Callable[..., object] = implementation, **kwargs: object) -> object:
            called.append(name)
            return implementation(*args, **kwargs)

        library.define(schema)
        library.impl(name, call, "CPU")
    try:
        yield called
    finally:
        library._destroy()
