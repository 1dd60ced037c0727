"""A packed batch of prefill chunks and decodes, as the model executors take it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward, sequence by sequence; tensors lie on the device.

    T rows (padded to the model's row tile), B sequences, P pages in the longest page table, S rows whose logits are wanted.
    Padding rows follow the last sequence, belong to none, and write to a scratch page. A page id is global: partition * pages per
    partition + id.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: tuple[Tensor, ...]  # one per cache group: [T] int64, page * page_tokens + offset
    page_tables: tuple[Tensor, ...]  # one per cache group: [B, P] int32, padded with -1
    query_starts: Tensor  # [B + 1] int32; rows of sequence b are query_starts[b]:query_starts[b + 1]
    logit_rows: Tensor  # [S] int64, padded to the row tile by repeating row 0
    num_rows: int  # without padding
    num_logit_rows: int  # without padding
