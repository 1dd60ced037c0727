"""The packed batch of a step."""

import torch
from fakes.device.model import limits
from fakes.device.steps import ids, step, worker_admission

from pypto_serving.wire.columns import NO_PAGE
from worker.batch import BatchBuilder
from worker.lanes.lane_table import LaneTable
from worker.step import CacheGroup, LaneSampling

_FULL, _SLIDING = CacheGroup("full", 4, 32), CacheGroup("sliding", 4, 32, window_tokens=6)


def _batch(admissions, chunks, groups=(_FULL,), **fields):
    table = LaneTable(limits(num_partitions=2), groups)
    scheduled = table.apply(step(1, chunks, admissions=admissions, **fields))
    builder = BatchBuilder(torch.device("cpu"))
    return builder.build(table.batch_columns(scheduled, table.prompt_rows(scheduled).rows))


def test_prefill_and_decode_lie_side_by_side():
    decode = worker_admission(1, range(20, 26), num_computed_tokens=5, page_tables=[ids(7, 8)])
    batch = _batch([worker_admission(0, (1, 2, 3), page_tables=[ids(5)]), decode], {0: 3})
    assert batch.token_ids.tolist() == [1, 2, 3, 25]
    assert batch.positions.tolist() == [0, 1, 2, 5]
    assert batch.slots[0].tolist() == [20, 21, 22, 33]
    assert batch.query_starts.tolist() == [0, 3, 4]
    assert batch.page_tables[0].tolist() == [[5, -1], [7, 8]]
    assert batch.logit_rows.tolist() == [2, 3]


def test_batch_has_the_rows_of_the_step_and_no_others():
    batch = _batch([worker_admission(0, range(33), page_tables=[ids(*range(9))])], {0: 33})
    assert [len(column) for column in (batch.token_ids, batch.positions, batch.slots[0])] == [33] * 3
    assert batch.query_starts.tolist() == [0, 33]


def test_chunk_that_does_not_reach_the_last_token_wants_no_logits():
    batch = _batch([worker_admission(0, range(5), page_tables=[ids(0, 1)])], {0: 4})
    assert batch.logit_rows.tolist() == []


def test_prompt_logprobs_want_the_rows_before_prompt_tokens():
    telling = worker_admission(1, range(5), page_tables=[ids(2, 3)], sampling=LaneSampling(prompt_logprobs=0))
    batch = _batch([worker_admission(0, range(3), page_tables=[ids(0)]), telling], {0: 3, 1: 5})
    assert batch.logit_rows.tolist() == [2, 7, 3, 4, 5, 6]


def test_page_tables_reach_only_as_far_as_the_step():
    batch = _batch([worker_admission(0, range(30), page_tables=[ids(*range(10))])], {0: 9})
    assert batch.page_tables[0].tolist() == [[0, 1, 2]]


def test_pages_of_a_partition_follow_those_before_it():
    batch = _batch([worker_admission(0, (1,), partition=1, page_tables=[ids(3)])], {})
    assert batch.page_tables[0].tolist() == [[32 + 3]]
    assert batch.slots[0].tolist()[:1] == [(32 + 3) * 4]


def test_groups_have_tables_of_their_own_and_window_entries_are_gone():
    request = worker_admission(0, range(13), num_computed_tokens=12, page_tables=[ids(0, 1, 2, 3), ids(NO_PAGE, 5, 6)])
    batch = _batch([request], {}, (_FULL, _SLIDING), grown_lanes=[0], grown_groups=[1], grown_pages=[9])
    assert [table.tolist() for table in batch.page_tables] == [[[0, 1, 2, 3]], [[-1, 5, 6, 9]]]
    assert [slots.tolist() for slots in batch.slots] == [[12], [36]]


def test_growth_keeps_the_order_of_each_table():
    admissions = [worker_admission(lane, range(12), page_tables=[ids(lane)]) for lane in (0, 1)]
    columns = {"grown_lanes": [1, 0, 1, 0], "grown_groups": [0] * 4, "grown_pages": [10, 20, 11, 21]}
    batch = _batch(admissions, {0: 12, 1: 12}, **columns)
    assert batch.page_tables[0].tolist() == [[0, 20, 21], [1, 10, 11]]


def test_trimmed_entries_are_gone():
    request = worker_admission(0, range(12), num_computed_tokens=11, page_tables=[ids(0, 1, 2), ids(3, 4, 5)])
    columns = {"trimmed_lanes": [0], "trimmed_groups": [1], "trimmed_entries": [1]}
    assert _batch([request], {}, (_FULL, _SLIDING), **columns).page_tables[1].tolist() == [[-1, 4, 5]]


def test_readmitted_lane_has_only_its_new_pages():
    table = LaneTable(limits(), [_FULL])
    table.apply(step(1, admissions=[worker_admission(0, range(12), page_tables=[ids(0, 1, 2)])]))
    scheduled = table.apply(
        step(2, {0: 2}, released_lanes=[0], admissions=[worker_admission(0, (8, 9), generation=1, page_tables=[ids(7)])])
    )
    batch = BatchBuilder(torch.device("cpu")).build(table.batch_columns(scheduled, table.prompt_rows(scheduled).rows))
    assert batch.page_tables[0].tolist() == [[7]]
    assert table.pages.gather(0, scheduled.lanes, 12).tolist() == [[7, -1, -1]]
