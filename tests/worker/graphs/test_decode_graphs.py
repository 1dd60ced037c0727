"""Capturing, and choosing among what was captured. That replays change no bit is shown in tests/accelerator."""

import logging

import numpy as np
import pytest
import torch
from fakes.device.graphs import FakeCapture
from fakes.device.model import token_cache

from worker.graphs.decode_graphs import DecodeGraphs
from worker.graphs.shapes import GraphShape
from worker.lanes.batch import BatchColumns, Hidden

_SHAPES = (GraphShape(8, 16), GraphShape(8, 64), GraphShape(16, 16))


def _forward(batch, cache):
    """The result tells the shape that it ran in."""
    return Hidden(torch.tensor([len(batch.token_ids), batch.page_tables[0].shape[1] * 4]), batch.token_ids == 0)


def _columns(rows, max_tokens, row_ends=None):
    rows = np.arange(rows, dtype=np.int64)
    table = np.zeros((len(rows), -(-max_tokens // 4)), dtype=np.int32)
    return BatchColumns(rows, rows, (rows,), (table,), rows + 1 if row_ends is None else row_ends, rows, max_tokens)


@pytest.fixture
def graphs():
    graphs = DecodeGraphs(_forward, token_cache(), _SHAPES, FakeCapture())
    graphs.capture()
    return graphs


@pytest.mark.parametrize(
    ("rows", "max_tokens", "shape"),
    [(1, 1, [8, 16]), (8, 16, [8, 16]), (8, 17, [8, 64]), (9, 16, [16, 16]), (1, 64, [8, 64])],
)
def test_first_shape_with_room_is_replayed(graphs, rows, max_tokens, shape):
    assert graphs.forward(_columns(rows, max_tokens)).wanted.tolist() == shape


@pytest.mark.parametrize(("rows", "max_tokens"), [(17, 1), (9, 17), (1, 65)])
def test_step_without_room_is_not_replayed(graphs, rows, max_tokens):
    assert graphs.forward(_columns(rows, max_tokens)) is None


def test_chunks_are_not_replayed(graphs):
    assert graphs.forward(_columns(3, 3, row_ends=np.array([2, 3]))) is None


def test_nothing_is_replayed_before_it_is_captured():
    assert DecodeGraphs(_forward, token_cache(), _SHAPES, FakeCapture()).forward(_columns(1, 1)) is None


def test_largest_shape_is_captured_first_and_each_is_told(caplog):
    with caplog.at_level(logging.INFO):
        DecodeGraphs(_forward, token_cache(), _SHAPES, FakeCapture()).capture()
    assert [(vars(record)["rows"], vars(record)["max_tokens"]) for record in caplog.records] == [(16, 16), (8, 64), (8, 16)]


def test_shape_that_can_not_be_captured_is_named():
    def capture(launch):
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(
        RuntimeError, match=r"^a graph for 16 rows and 16 tokens can not be captured \(--eager does without\): operation not"
    ):
        DecodeGraphs(_forward, token_cache(), _SHAPES, capture).capture()
