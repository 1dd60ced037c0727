"""Grouped-query attention over a paged cache, with optional biases and norms of the query and key heads."""

from dataclasses import dataclass

from torch import Tensor

from kernels import ops
from worker.batch import Batch
from worker.checkpoint.config_fields import ConfigFields
from worker.checkpoint.weights import Linear, Weights


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What is the same in all attention layers of a model."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    norm_eps: float | None = None  # of the norms of query and key heads; None: there are none

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, self.num_kv_heads * self.head_dim


def read_attention_shape(config: ConfigFields, default_head_dim: int | None = None) -> AttentionShape:
    """The shape without biases and norms; `default_head_dim` holds when config.json has none, else hidden_size / num_attention_heads."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.refusal("num_key_value_heads", f"a divisor of num_attention_heads, which is {num_heads}")
    head_dim = config.integer("head_dim", default_head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise config.refusal("head_dim", "an even number")
    return AttentionShape(hidden_size, num_heads, num_kv_heads, head_dim)


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer: normalised rows [T, hidden] in, their update [T, hidden] out."""

    shape: AttentionShape
    qkv: Linear
    output: Linear
    head_norms: tuple[Tensor | None, Tensor | None]  # of query and key heads, as ops.lay_out_head_norms gives them
    rope_table: tuple[Tensor, Tensor]  # cosines and sines, each [positions, head_dim / 2]
    group: int  # cache group
    window_tokens: int  # tokens that a query sees; 0: all

    def __call__(self, rows: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys and values of the rows into the cache of this layer, then attend."""
        shape = self.shape
        heads = self.qkv(rows).view(-1, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        query = ops.qk_rope_kv_write(
            heads, *self.head_norms, shape.norm_eps or 0.0, batch.positions, *self.rope_table, keys, values, batch.slots[self.group]
        )
        attended = ops.paged_attention(
            query,
            keys,
            values,
            batch.page_tables[self.group],
            batch.query_starts,
            batch.last_keys,
            shape.head_dim**-0.5,
            self.window_tokens,
        )
        return self.output(attended.flatten(1))


def load_attention(
    weights: Weights, prefix: str, shape: AttentionShape, rope_table: tuple[Tensor, Tensor], group: int, window_tokens: int
) -> Attention:
    """The attention layer whose tensors begin with `prefix`; the other arguments are fields of the result."""
    rows, hidden = list(shape.qkv_rows), shape.hidden_size
    return Attention(
        shape=shape,
        qkv=weights.linear([f"{prefix}{part}_proj" for part in "qkv"], rows, hidden, bias=shape.qkv_bias),
        output=weights.linear([prefix + "o_proj"], [hidden], rows[0], bias=shape.output_bias),
        head_norms=_load_head_norms(weights, prefix, shape),
        rope_table=rope_table,
        group=group,
        window_tokens=window_tokens,
    )


def _load_head_norms(weights: Weights, prefix: str, shape: AttentionShape) -> tuple[Tensor | None, Tensor | None]:
    if shape.norm_eps is None:
        return None, None
    q_norm, k_norm = (weights.tensor(f"{prefix}{part}_norm.weight", shape.head_dim) for part in "qk")
    return ops.lay_out_head_norms(q_norm, k_norm, shape.num_heads, shape.num_kv_heads)
