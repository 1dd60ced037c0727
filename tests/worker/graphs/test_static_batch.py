"""A batch whose tensors stay where they are."""

import numpy as np
import pytest
import torch
from fakes.device.model import limits, token_cache
from fakes.device.steps import ids, step, worker_admission

from worker.graphs.shapes import GraphShape
from worker.graphs.static_batch import StaticBatch
from worker.lanes.batch import BatchBuilder, BatchColumns
from worker.lanes.lane_table import LaneTable

_SCRATCH = 64 * 4


def _columns(lanes, length=6):
    """A decode step of some lanes, at index `length - 1`, two pages each."""
    table = LaneTable(limits(), token_cache().groups)
    admissions = [
        worker_admission(lane, range(lane, lane + length), num_computed_tokens=length - 1, page_tables=[ids(2 * lane, 2 * lane + 1)])
        for lane in lanes
    ]
    run = table.apply(step(1, admissions=admissions))
    return BatchColumns.of(run, table, np.empty(0, dtype=np.int64))


@pytest.fixture
def static():
    return StaticBatch(GraphShape(8, 16), token_cache())


def test_rows_are_those_of_an_ordinary_batch(static):
    columns = _columns([0, 2, 5])
    static.load(columns)
    ours, theirs = static.batch, BatchBuilder(torch.device("cpu")).build(columns)
    for name in ("token_ids", "positions", "logit_rows"):
        assert getattr(ours, name)[:3].tolist() == getattr(theirs, name).tolist()
    assert ours.slots[0][:3].tolist() == theirs.slots[0].tolist()
    assert ours.page_tables[0][:3, :2].tolist() == theirs.page_tables[0].tolist()


def test_rest_is_padding_of_no_sequence(static):
    static.load(_columns([0, 2, 5]))
    batch = static.batch
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert batch.token_ids[3:].tolist() == batch.positions[3:].tolist() == [0] * 5
    assert batch.slots[0][3:].tolist() == [_SCRATCH] * 5
    assert batch.logit_rows[3:].tolist() == [0] * 5
    assert batch.page_tables[0].shape == (8, 4) and (batch.page_tables[0][3:] == -1).all() and (batch.page_tables[0][:, 2:] == -1).all()


def test_nothing_of_an_earlier_step_is_left(static):
    fresh = StaticBatch(GraphShape(8, 16), token_cache())
    static.load(_columns(range(8)))
    static.load(_columns([1], length=2))
    fresh.load(_columns([1], length=2))
    for name in ("token_ids", "positions", "query_starts", "logit_rows"):
        assert getattr(static.batch, name).tolist() == getattr(fresh.batch, name).tolist()
    assert static.batch.page_tables[0].tolist() == fresh.batch.page_tables[0].tolist()
    assert static.batch.slots[0].tolist() == fresh.batch.slots[0].tolist()


def test_tensors_stay_in_place(static):
    batch = static.batch
    addresses = [tensor.data_ptr() for tensor in (batch.token_ids, batch.page_tables[0], batch.query_starts)]
    static.load(_columns([3]))
    assert [tensor.data_ptr() for tensor in (static.batch.token_ids, batch.page_tables[0], batch.query_starts)] == addresses


def test_before_anything_is_loaded_all_rows_are_padding(static):
    assert static.batch.query_starts.tolist() == [0] * 9
    assert static.batch.slots[0].tolist() == [_SCRATCH] * 8
