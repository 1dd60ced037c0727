"""Which shapes are captured."""

import pytest
from fakes.device.model import limits

from worker.graphs.shapes import graph_shapes


def _shapes(attention_follows_lengths=True, **bounds):
    shapes = graph_shapes(limits(**{"max_step_tokens": 512, "max_model_len": 2048, **bounds}), attention_follows_lengths)
    return [(shape.rows, shape.max_tokens) for shape in shapes]


@pytest.mark.parametrize(
    ("max_lanes", "rows"), [(1, [8]), (8, [8]), (9, [8, 16]), (48, [8, 16, 32, 48]), (50, [8, 16, 32, 56]), (64, [8, 16, 32, 64])]
)
def test_rows_double_up_to_those_of_all_lanes(max_lanes, rows):
    assert _shapes(max_lanes=max_lanes) == [(count, 2048) for count in rows]


def test_step_with_few_tokens_bounds_the_rows():
    assert _shapes(max_lanes=256, max_step_tokens=20) == [(8, 2048), (16, 2048), (24, 2048)]


def test_attention_over_the_width_of_the_table_gets_several_widths():
    assert _shapes(False, max_lanes=16, max_model_len=3000) == [(8, 512), (8, 2048), (8, 3000), (16, 512), (16, 2048), (16, 3000)]
    assert _shapes(False, max_model_len=100) == [(8, 100)]


def test_what_gains_nothing_from_a_graph_gets_none():
    assert max(rows * tokens for rows, tokens in _shapes(False, max_lanes=256, max_model_len=40960)) <= 2**17
    assert (256, 512) in _shapes(False, max_lanes=256, max_model_len=40960)
