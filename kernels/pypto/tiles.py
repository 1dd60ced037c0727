"""Which tiles the kernels use for which shapes. Figures of an Ascend 910B: 192 KiB of unified buffer, 64 KiB of L0A and of L0B, 128 KiB of L0C."""


def rows_per_tile(width: int) -> int:
    """Rows of `width` columns that an elementwise kernel takes at a time."""
    return max(1, min(8, 8192 // width))


def linear_tiles(out_features: int, in_features: int) -> tuple[int, int, int]:
    """Rows, columns of the input and columns of the output that a matrix product takes at a time."""
    return 16, min(256, in_features), min(128, out_features)


def attention_tiles(rows: int, sequences: int, group: int, page_tokens: int) -> tuple[int, int]:
    """Query rows of a sequence, and keys, that attention takes at a time. Keys never depend on the batch: results would."""
    return 1 if rows <= sequences else 16, 128


def head_rows_per_tile(width: int) -> int:
    """Rows of `width` columns, in heads, that are normalised and rotated at a time."""
    return max(1, min(16, 16384 // width))
