"""What a step may do to the lanes there are: every rule broken once, and the lanes that run."""

import numpy as np
import pytest
from fakes.device.model import limits
from fakes.device.steps import ids, step, worker_admission

from pypto_serving.wire.columns import NO_PAGE
from worker.lanes.lane_table import LaneOutcomes, LaneTable
from worker.lanes.step_rules import InvalidStep
from worker.step import CacheGroup

_GROUPS = (CacheGroup("full", 4, 32), CacheGroup("sliding", 4, 32, window_tokens=6))
_PAGES = [ids(0, 1, 2, 3), ids(0, 1, 2, 3)]


def _admission(lane=0, token_ids=(1, 2, 3), **fields):
    return worker_admission(lane, token_ids, **{"page_tables": _PAGES, **fields})


def _table(*admissions, **overrides):
    table = LaneTable(limits(max_lanes=4, max_step_tokens=12, **overrides), _GROUPS)
    table.apply(step(1, admissions=admissions))
    return table


def _runs(table, *args, **fields):
    scheduled = table.apply(step(2, *args, **fields))
    return dict(zip(scheduled.lanes.tolist(), scheduled.counts.tolist(), strict=True))


def _draw(table, scheduled, *token_ids, failed=False):
    """Compute `scheduled`, whose lanes draw `token_ids`."""
    table.advance(scheduled)
    failures = np.full(len(token_ids), failed)
    columns = (table.generations[scheduled.lanes], scheduled.starts + scheduled.counts, np.array(token_ids), ~failures, failures)
    return table.settle(step(2), LaneOutcomes(scheduled.lanes, *columns)).tolist()


_LIVE = (_admission(0), _admission(1, final_length=3), _admission(2, constrained=True))

_BROKEN_STEPS = {
    "released_lanes: lane 3 is not live": {"released_lanes": [0, 3]},
    "trimmed_lanes: lane 3 is not live": {"trimmed_lanes": [3], "trimmed_groups": [1], "trimmed_entries": [1]},
    "trimmed_entries: 5, the page table of lane 0 has 4": {"trimmed_lanes": [0], "trimmed_groups": [1], "trimmed_entries": [5]},
    "grown_lanes: lane 0 is not live": {"released_lanes": [0], "grown_lanes": [0], "grown_groups": [0], "grown_pages": [1]},
    "grown_lanes: lane 0 gets 17 pages, limit 16": {"grown_lanes": [0] * 13, "grown_groups": [0] * 13, "grown_pages": range(13)},
    "chunk_lanes: lane 3 is not live": {"chunks": {3: 0}},
    "chunk_tokens: 4, lane 0 has 3 tokens not yet computed": {"chunks": {0: 4}},
    "chunk_tokens: 16 tokens run in all, limit 12": {"chunks": {0: 3, 3: 13}, "admissions": [_admission(3, range(13))]},
    "grown_lanes: lane 3 has pages for 4 tokens and runs up to 5": {
        "chunks": {3: 5},
        "admissions": [_admission(3, range(5), page_tables=[ids(0, 1), ids(0)])],
    },
    "lane 0 runs from token 0 on and lost pages": {
        "chunks": {0: 1},
        "trimmed_lanes": [0],
        "trimmed_groups": [1],
        "trimmed_entries": [1],
    },
    "masks: lane 0 is not constrained": {"masks": {0: bytes(13)}},
    "masks: lane 3 is not live": {"masks": {3: bytes(13)}},
    "masks: lane 2 does not sample": {"masks": {2: bytes(13)}, "chunks": {2: 2}},
    "masks: none for lane 2": {"chunks": {2: 3}},
}

_BROKEN_ADMISSIONS = {
    "admissions.lane: 0 is live": _admission(0, generation=1),
    "admissions.generation: 0, lane 1 had 0": _admission(1),
}


@pytest.mark.parametrize("message", _BROKEN_STEPS)
def test_broken_step_names_field_value_and_limit_and_changes_nothing(message):
    table = _table(*_LIVE)
    before = table.digest
    with pytest.raises(InvalidStep) as raised:
        table.apply(step(2, **_BROKEN_STEPS[message]))
    assert message in str(raised.value)
    assert table.digest == before
    assert _runs(table, {0: 3}) == {0: 3}


@pytest.mark.parametrize("message", _BROKEN_ADMISSIONS)
def test_broken_admission_names_field_value_and_limit_and_changes_nothing(message):
    table = _table(*_LIVE)
    before = table.digest
    with pytest.raises(InvalidStep) as raised:
        table.apply(step(2, admissions=[_BROKEN_ADMISSIONS[message]], released_lanes=[1]))
    assert message in str(raised.value)
    assert table.digest == before
    assert _runs(table, {0: 3}) == {0: 3}


def test_prompt_runs_only_when_listed():
    table = _table(_admission(0), _admission(1, (7,)))
    assert _runs(table) == {1: 1}
    assert _runs(table, {0: 2}) == {0: 2, 1: 1}


def test_listed_lane_sits_out_with_zero():
    assert _runs(_table(_admission(0, (7,)), _admission(1, (7,))), {0: 0}) == {1: 1}


def test_lane_samples_only_with_its_last_known_token():
    table = _table(_admission(0), _admission(1))
    scheduled = table.apply(step(2, {0: 2, 1: 3}))
    assert scheduled.samples.tolist() == [False, True]


def test_constrained_lane_needs_no_mask_where_it_only_computes():
    table = _table(_admission(0, constrained=True), _admission(1, constrained=True, final_length=3))
    assert _runs(table, {0: 2, 1: 3}) == {0: 2, 1: 3}
    assert _runs(table, {0: 3}, masks={0: bytes(13)}) == {0: 3}


def test_lane_at_its_final_length_computes_but_never_samples():
    table = _table(_admission(0, final_length=3))
    scheduled = table.apply(step(2, {0: 3}))
    assert scheduled.samples.tolist() == [False]
    table.advance(scheduled)
    assert _runs(table) == {}


def test_lane_ends_at_its_final_length():
    table = _table(_admission(0, final_length=4))
    table.advance(table.apply(step(2, {0: 3})))
    assert _runs(table) == {}
    assert _runs(table, {0: 1}) == {}


def test_lane_ends_with_an_end_token():
    table = _table(_admission(0, end_token_ids=ids(8, 9)), _admission(1, end_token_ids=ids(10)))
    assert _draw(table, table.apply(step(2, {0: 3, 1: 3})), 9, 9) == [0]
    assert _runs(table) == {1: 1}


def test_lane_that_was_ended_runs_again_after_readmission():
    table = _table(_admission(0, (7,)))
    assert _draw(table, table.apply(step(2)), 0, failed=True) == [0]
    assert _runs(table) == {}
    assert _runs(table, released_lanes=[0], admissions=[_admission(0, (7,), generation=1)]) == {0: 1}


def test_trim_is_allowed_for_what_left_the_window():
    table = _table(_admission(0, range(10), num_computed_tokens=9))
    columns = {"trimmed_lanes": [0], "trimmed_groups": [1]}
    assert _runs(table, trimmed_entries=[1], **columns) == {0: 1}
    with pytest.raises(InvalidStep, match="lost pages"):
        _runs(table, trimmed_entries=[2], **columns)


def test_admission_with_pages_that_left_the_window_runs():
    tables = [ids(0, 1, 2), ids(NO_PAGE, 1, 2)]
    assert _runs(_table(_admission(0, range(10), num_computed_tokens=9, page_tables=tables))) == {0: 1}


def test_clear_forgets_generations():
    table = _table(_admission(0, generation=7))
    table.clear()
    assert _runs(table, {0: 3}, admissions=[_admission(0, generation=0)]) == {0: 3}
