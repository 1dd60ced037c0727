"""What attention of single rows and of many rows do alike with a key tile: results are the same from both."""

import functools

import pypto
import torch
from torch import Tensor

from kernels.scratch import PAGES_PER_KEY_TILE

MASKED = -1e30  # finite: a row whose keys are all masked so far must not make NaN of inf - inf

#: With less, tiles wait for memory instead of for each other.
MEMORY = {"stitch_function_inner_memory": 1024, "stitch_function_outcast_memory": 1024}


def all_key_positions(count: int, device: torch.device) -> Tensor:
    """The positions 0 .. count - 1: [1, count] in fp32, part of a table that all layers and steps share."""
    return _positions(1 << (count - 1).bit_length(), device)[:count].unsqueeze(0)


@functools.cache
def _positions(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.float32, device=device)


def read(numbers, index):
    """A number that steers the kernel."""
    number = numbers[index]
    number.as_variable()
    return number


def find_pages(page_table, line, tile, first, last, page_tokens):
    """Where the pages of a tile begin in the cache, for rows that see keys first .. last.

    In place of a page that no row sees, which may hold anything, stands one that is seen: its keys are masked.
    """
    found = []
    for part in range(PAGES_PER_KEY_TILE):
        place = pypto.min(pypto.max(tile * PAGES_PER_KEY_TILE + part, first // page_tokens), last // page_tokens)
        found.append(read(page_table, (line, place)) * page_tokens)
    return found


def score(query, k_cache, pages, column, page_tokens):
    """query [rows, n] times the keys of the pages, which lie in n columns of the cache from `column` on: [rows, key tile]."""
    rows, width = query.shape
    scores = pypto.tensor([rows, page_tokens * PAGES_PER_KEY_TILE], pypto.DT_FP32, "scores")
    for part, offset in enumerate(pages):
        keys = pypto.view(k_cache, [page_tokens, width], [offset, column])
        pypto.assemble(pypto.matmul(query, keys, pypto.DT_FP32, b_trans=True), [0, part * page_tokens], scores)
    return scores


def mask(scores, distance, window):
    """Keeps the scores of keys that lie 0 .. window - 1 behind their row, or any distance behind it without a window (0)."""
    scores = pypto.where(pypto.ge(distance, 0.0), scores, MASKED)
    return pypto.where(pypto.lt(distance, float(window)), scores, MASKED) if window else scores


def weigh(probabilities, v_cache, pages, column, width, valid_rows, valid_keys):
    """The values of the pages, in `width` columns of the cache from `column` on, weighted: [rows, width]."""
    rows, key_tile = probabilities.shape
    page_tokens = key_tile // PAGES_PER_KEY_TILE
    values = pypto.tensor([key_tile, width], pypto.DT_BF16, "values")
    for part, offset in enumerate(pages):
        pypto.assemble(pypto.view(v_cache, [page_tokens, width], [offset, column]), [part * page_tokens, 0], values)
    values = pypto.view(values, [key_tile, width], [0, 0], valid_shape=[valid_keys, width])
    shares = pypto.view(probabilities, [rows, key_tile], [0, 0], valid_shape=[valid_rows, valid_keys])
    return pypto.matmul(shares, values, pypto.DT_FP32)
