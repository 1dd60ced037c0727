"""Which shapes of decode steps are captured."""

from dataclasses import dataclass

from worker.limits import RunnerLimits

_LEAST_ROWS = 8
_LEAST_TOKENS = 512
_TOKENS_FACTOR = 4
# Where rows meet more keys than this, the kernels of a layer take longer than their launches: a replay would gain nothing.
_MAX_KEYS = 1 << 17


@dataclass(frozen=True, slots=True, order=True)
class GraphShape:
    """What a captured forward has room for."""

    rows: int
    max_tokens: int  # of a sequence


def graph_shapes(limits: RunnerLimits, attention_follows_lengths: bool) -> tuple[GraphShape, ...]:
    """The shapes that a runner captures, smallest first.

    Rows go by doubling up to what a step may have. PyPTO's attention walks the keys that a sequence has: one width of page tables, the
    greatest, costs nothing. The torch implementation meets every key that a page table has room for: there are a few widths, and long
    sequences in great numbers run without a graph.
    """
    if attention_follows_lengths:
        return tuple(GraphShape(rows, limits.max_model_len) for rows in _row_counts(limits))
    shapes = [GraphShape(rows, tokens) for rows in _row_counts(limits) for tokens in _token_counts(limits)]
    return tuple(shape for shape in shapes if shape.rows * shape.max_tokens <= _MAX_KEYS)


def _row_counts(limits: RunnerLimits) -> list[int]:
    most = min(limits.max_lanes, limits.max_step_tokens)
    most += -most % _LEAST_ROWS
    return [*_growing(_LEAST_ROWS, 2, most), most]


def _token_counts(limits: RunnerLimits) -> list[int]:
    return [*_growing(_LEAST_TOKENS, _TOKENS_FACTOR, limits.max_model_len), limits.max_model_len]


def _growing(first: int, factor: int, limit: int) -> list[int]:
    counts = []
    while first < limit:
        counts.append(first)
        first *= factor
    return counts
