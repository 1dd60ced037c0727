"""A packed batch: prefill chunks and decodes of many sequences side by side, as tensors on the device."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model's forward runs: T token rows of B sequences, S of which want logits.

    Rows of sequence b are query_starts[b]:query_starts[b+1]. T is a multiple of the model's row tile; padding rows come last, belong to
    no sequence and write to scratch slots. S is zero or a multiple of the row tile; padding repeats the first wanted row.
    """

    token_ids: Tensor  # [T] int64; 0 in padding rows
    positions: Tensor  # [T] int64; index of the token in its sequence, 0 in padding rows
    slots: tuple[Tensor, ...]  # per cache group [T] int64: page * page_tokens + offset
    page_tables: tuple[Tensor, ...]  # per cache group [B, P] int32, padded with -1; entries that left a window are -1 too
    query_starts: Tensor  # [B + 1] int32
    logit_rows: Tensor  # [S] int64, indices into T
    num_rows: int  # without padding
    num_logit_rows: int  # without padding
