"""Which shapes are captured, batches that stay in place, and the choice of a graph. tests/accelerator shows that replays change no bit."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes.device.graphs import FakeCapture
from fakes.device.model import limits, token_cache
from fakes.device.steps import ids, step, worker_admission

from kernels import ops
from worker.batch import BatchBuilder, BatchColumns, Hidden, UnreadTokens
from worker.decode_graphs import DecodeGraphs, GraphShape, StaticBatch, graph_shapes
from worker.lanes.lane_table import LaneTable


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


_SCRATCH = 64 * 4


def _decode_step(lanes, length=6):
    """A decode step of some lanes, at index `length - 1`, two pages each."""
    table = LaneTable(limits(), token_cache().groups)
    admissions = [
        worker_admission(lane, range(lane, lane + length), num_computed_tokens=length - 1, page_tables=[ids(2 * lane, 2 * lane + 1)])
        for lane in lanes
    ]
    scheduled = table.apply(step(1, admissions=admissions))
    return table.batch_columns(scheduled, np.empty(0, dtype=np.int64))


@pytest.fixture
def static():
    return StaticBatch(GraphShape(8, 16), token_cache())


def test_rows_are_those_of_an_ordinary_batch(static):
    columns = _decode_step([0, 2, 5])
    static.load(columns)
    ours, theirs = static.batch, BatchBuilder(torch.device("cpu")).build(columns)
    for name in ("token_ids", "positions", "last_keys", "logit_rows"):
        assert getattr(ours, name)[:3].tolist() == getattr(theirs, name).tolist()
    assert ours.slots[0][:3].tolist() == theirs.slots[0].tolist()
    assert ours.page_tables[0][:3, :2].tolist() == theirs.page_tables[0].tolist()


def test_columns_have_the_type_that_kernels_of_the_device_take(monkeypatch):
    monkeypatch.setattr(ops, "index_dtype", {"cpu": torch.int32}.__getitem__)
    tokens = UnreadTokens(np.array([1]), np.array([2]), torch.tensor([70, 71, 72]))
    columns = replace(_decode_step([0, 2, 5]), unread=tokens)
    static = StaticBatch(GraphShape(8, 16), token_cache())
    static.load(columns)
    for batch in (static.batch, BatchBuilder(torch.device("cpu")).build(columns)):
        assert batch.token_ids[:3].tolist() == [5, 72, 10]
        steering = (batch.token_ids, batch.positions, batch.last_keys, *batch.slots, *batch.page_tables, batch.query_starts)
        assert {tensor.dtype for tensor in steering} == {torch.int32}


def test_rest_is_padding_of_no_sequence(static):
    static.load(_decode_step([0, 2, 5]))
    batch = static.batch
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert batch.token_ids[3:].tolist() == batch.positions[3:].tolist() == [0] * 5
    assert batch.last_keys[3:].tolist() == [-1] * 5
    assert batch.slots[0][3:].tolist() == [_SCRATCH] * 5
    assert batch.logit_rows[3:].tolist() == [0] * 5
    assert batch.page_tables[0].shape == (8, 4) and (batch.page_tables[0][3:] == -1).all() and (batch.page_tables[0][:, 2:] == -1).all()


def test_nothing_of_an_earlier_step_is_left(static):
    fresh = StaticBatch(GraphShape(8, 16), token_cache())
    static.load(_decode_step(range(8)))
    static.load(_decode_step([1], length=2))
    fresh.load(_decode_step([1], length=2))
    for name in ("token_ids", "positions", "last_keys", "query_starts", "logit_rows"):
        assert getattr(static.batch, name).tolist() == getattr(fresh.batch, name).tolist()
    assert static.batch.page_tables[0].tolist() == fresh.batch.page_tables[0].tolist()
    assert static.batch.slots[0].tolist() == fresh.batch.slots[0].tolist()


def test_tensors_stay_in_place(static):
    batch = static.batch
    addresses = [tensor.data_ptr() for tensor in (batch.token_ids, batch.page_tables[0], batch.query_starts)]
    static.load(_decode_step([3]))
    assert [tensor.data_ptr() for tensor in (static.batch.token_ids, batch.page_tables[0], batch.query_starts)] == addresses


def test_before_anything_is_loaded_all_rows_are_padding(static):
    assert static.batch.query_starts.tolist() == [0] * 9
    assert static.batch.last_keys.tolist() == [-1] * 8
    assert static.batch.slots[0].tolist() == [_SCRATCH] * 8


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


def test_shape_that_cannot_be_captured_is_named():
    def capture(launch):
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(
        RuntimeError, match=r"^a graph for 16 rows and 16 tokens cannot be captured \(--eager does without\): operation not"
    ):
        DecodeGraphs(_forward, token_cache(), _SHAPES, capture).capture()
