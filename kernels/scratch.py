"""The memory that PyPTO's attention keeps between its two kernels. Imports nothing: a start plans with it, before there are kernels."""

PAGES_PER_KEY_TILE = 4  # pages whose keys share a softmax: results depend on it, so it never depends on the batch
MAX_DECODE_BYTES = 192 << 20  # in captured steps it is there for good
MAX_PREFILL_BYTES = 1 << 30
DECODE_STATISTICS = 2  # columns of a head's maximum and denominator, which lie apart
PREFILL_STATISTICS = 16  # beside the weighted values, so that one load has all three; each begins at a multiple of 32 bytes


def key_tiles(num_pages: int) -> int:
    """Key tiles of a sequence that has a page table of so many pages."""
    return -(-num_pages // PAGES_PER_KEY_TILE)


def scratch_bytes(rows: int, num_pages: int, heads: int, head_dim: int, statistics: int = DECODE_STATISTICS) -> int:
    """Of `rows` rows with page tables of `num_pages`: for each key tile and head the weighted values, their maximum and denominator."""
    return rows * key_tiles(num_pages) * heads * (head_dim + statistics) * 4


def rows_per_launch(rows: int, num_pages: int, heads: int, head_dim: int, max_bytes: int, statistics: int = DECODE_STATISTICS) -> int:
    """How many of `rows` are attended to at a time, so that what they need stays within `max_bytes`; one at least."""
    fitting = max(1, max_bytes // scratch_bytes(1, num_pages, heads, head_dim, statistics))
    return rows if rows <= fitting else 1 << (fitting.bit_length() - 1)
