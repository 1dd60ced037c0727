"""Log probabilities of drawn and of prompt tokens, and the order of the largest values, with many ties."""

import numpy as np
import pytest
import torch
from fakes.device.model import FakeModel, constant_logits, hashed_logits, limits, token_cache
from fakes.device.steps import ids, step, worker_admission

from worker.runner import ModelRunner
from worker.sampling.logprobs import FLOOR, rank, row_logprobs, top
from worker.step import LaneSampling

_EXACT = [-0.4076, -1.4076, -2.4076]


def _reporting(lane, **sampling):
    return worker_admission(lane, (lane,), page_tables=[ids(lane)], sampling=LaneSampling(logprobs=True, **sampling))


def _runner(logits=None, vocab_size=97):
    return ModelRunner(FakeModel(logits or hashed_logits(vocab_size)), token_cache(), limits(vocab_size))


def _logprobs(logits, token_ids, num_top):
    return row_logprobs(lambda first, last: logits[first:last], torch.as_tensor(token_ids), num_top)


_SAMPLINGS = [
    {},
    {"temperature": 0.5, "seed": 4},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 2.0, "top_k": 1},
    {"repetition_penalty": 1.3, "presence_penalty": 1.0},
]


@pytest.mark.parametrize("num_others", [0, 7])
@pytest.mark.parametrize("sampling", _SAMPLINGS, ids=lambda sampling: str(sampling))
def test_lpu_03_logprobs_come_from_the_unmodified_logits(sampling, num_others):
    request = worker_admission(0, (0, 1), sampling=LaneSampling(logprobs=True, top_logprobs=3, **sampling), page_tables=[ids(0, 1)])
    others = [worker_admission(lane, (lane,), page_tables=[ids(lane + 1)]) for lane in range(1, num_others + 1)]
    output = _runner(constant_logits([2.0, 1.0, 0.0]), 3).execute(step(1, {0: 2}, admissions=[request, *others]))
    (report,) = output.logprobs
    assert (report.lane, report.top_token_ids.tolist()) == (0, [0, 1, 2])
    assert np.allclose(report.top_logprobs, _EXACT, atol=1e-4)
    assert np.isclose(report.sampled, _EXACT[int(output.token_ids[0])], atol=1e-4)


def test_lpu_01_sampled_logprob_comes_without_alternatives():
    request = worker_admission(0, (5,), sampling=LaneSampling(logprobs=True))
    (report,) = _runner().execute(step(admissions=[request])).logprobs
    assert report.sampled < 0 and len(report.top_token_ids) == len(report.top_logprobs) == 0


def test_lanes_get_as_many_alternatives_as_they_asked_for():
    counts = {0: 2, 1: 5, 2: 0}
    admissions = [_reporting(lane, top_logprobs=count) for lane, count in counts.items()]
    reports = _runner().execute(step(admissions=[*admissions, worker_admission(3, (3,), page_tables=[ids(9)])])).logprobs
    assert {report.lane: len(report.top_token_ids) for report in reports} == counts


def test_lpu_02_impossible_tokens_get_the_floor():
    logprobs = _logprobs(torch.tensor([[0.0, float("-inf"), -1e6]]), np.array([1]), 3)
    assert logprobs.chosen.tolist() == [FLOOR]
    assert logprobs.top_token_ids.tolist() == [[0, 1, 2]] and logprobs.top_logprobs.tolist() == [[0.0, FLOOR, FLOOR]]


def test_equal_alternatives_are_ordered_by_token_id():
    logprobs = _logprobs(torch.zeros(2, 200), np.array([7, 8]), 4)
    assert logprobs.top_token_ids.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("vocab_size", [49152, 50257])
def test_rows_are_batch_invariant(vocab_size):
    logits = torch.randn(70, vocab_size, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    token_ids = torch.arange(70)
    together = _logprobs(logits, token_ids, 20)
    for part in (slice(0, 1), slice(69, 70), slice(3, 5), slice(2, 67)):
        alone = _logprobs(logits[part], token_ids[part], 20)
        assert (alone.chosen == together.chosen[part]).all()
        assert (alone.top_token_ids == together.top_token_ids[part]).all() and (alone.top_logprobs == together.top_logprobs[part]).all()


def _prompt_reports(chunk, num_computed=0, prompt=range(1, 41), **fields):
    """Reports on a prompt of 40 tokens that is computed in chunks, as columns by index."""
    runner, done, reports = _runner(), num_computed, []
    sampling = LaneSampling(prompt_logprobs=2)
    request = worker_admission(0, prompt, sampling=sampling, num_computed_tokens=num_computed, **fields)
    if num_computed:
        runner.execute(step(1, {0: num_computed}, admissions=[worker_admission(0, prompt)]))
        runner.execute(step(2, released_lanes=[0]))
        request = worker_admission(0, prompt, sampling=sampling, num_computed_tokens=num_computed, generation=1, **fields)
    admissions = [request]
    while done < len(prompt):
        count = min(chunk, len(prompt) - done)
        reports += runner.execute(step(3, {0: count}, admissions=admissions)).prompt_logprobs
        done, admissions = done + count, []
    entries = {}
    for report in reports:
        for i, logprob in enumerate(report.logprobs.tolist()):
            assert report.first_index + i not in entries
            entries[report.first_index + i] = (logprob, *report.top_token_ids[2 * i : 2 * i + 2], *report.top_logprobs[2 * i : 2 * i + 2])
    return entries


def test_prompt_is_reported_from_its_second_token_on():
    entries = _prompt_reports(40)
    assert list(entries) == list(range(1, 40))
    logits = torch.from_numpy(hashed_logits()(list(range(1, 8))))
    assert entries[7][0] == float(logits.log_softmax(-1)[8])
    assert entries[7][1:3] == tuple(logits.topk(2).indices.tolist())


@pytest.mark.parametrize("chunk", [1, 7, 15, 39])
def test_lpu_05_chunks_do_not_change_the_report(chunk):
    assert _prompt_reports(chunk) == _prompt_reports(40)


def test_report_of_a_lane_with_computed_tokens_begins_behind_them():
    everything = _prompt_reports(40)
    assert _prompt_reports(7, num_computed=20) == {index: entry for index, entry in everything.items() if index > 20}


def test_generated_tokens_are_not_reported_as_prompt():
    assert list(_prompt_reports(40, num_prompt_tokens=30)) == list(range(1, 30))


def test_chunk_that_does_not_sample_reports():
    runner = _runner()
    output = runner.execute(step(1, {0: 2}, admissions=[worker_admission(0, (1, 2, 3), sampling=LaneSampling(prompt_logprobs=0))]))
    (report,) = output.prompt_logprobs
    assert (len(output.lanes), report.first_index, len(report.logprobs), len(report.top_token_ids)) == (0, 1, 2, 0)


def test_logits_of_a_long_prompt_are_made_a_few_rows_at_a_time():
    prompt, model = [(7 * index) % 97 for index in range(301)], FakeModel(hashed_logits())
    request = worker_admission(0, prompt, sampling=LaneSampling(prompt_logprobs=2))
    whole = ModelRunner(model, token_cache(128), limits(max_model_len=512, max_step_tokens=512)).execute(
        step(1, {0: 301}, admissions=[request])
    )
    assert max(model.head_rows) <= 64 and sum(model.head_rows) == 301
    (report,) = whole.prompt_logprobs
    expected = torch.stack([torch.from_numpy(hashed_logits()(prompt[: index + 1])) for index in range(300)]).log_softmax(-1)
    assert (report.logprobs == expected[range(300), prompt[1:]].numpy()).all()
    assert (report.top_token_ids.reshape(300, 2) == expected.topk(2).indices.numpy()).all()


def _ties(rows, vocab_size, levels):
    return torch.randint(0, levels, (rows, vocab_size), generator=torch.Generator().manual_seed(levels)).float()


@pytest.mark.parametrize("levels", [2, 30, 10_000])
@pytest.mark.parametrize("count", [1, 5, 64, 300])
def test_top_is_ordered_by_value_and_then_by_token_id(levels, count):
    values = _ties(6, 1000, levels)
    expected = [sorted(range(1000), key=lambda i, row=row: (-float(values[row, i]), i))[:count] for row in range(6)]
    top_values, token_ids = top(values, count)
    assert token_ids.tolist() == expected
    assert torch.equal(top_values, values.gather(-1, token_ids))


def test_top_of_nothing_is_empty():
    values, token_ids = top(_ties(3, 10, 4), 0)
    assert values.shape == token_ids.shape == (3, 0)


def test_top_reaches_the_whole_vocabulary():
    assert top(_ties(2, 10, 4), 10)[1].sort(dim=-1).values.tolist() == [list(range(10))] * 2


def test_ranking_does_not_settle_a_value_that_ties_with_its_last():
    ranking = rank(torch.tensor([[3.0, 2.0, 1.0, 1.0], [3.0, 2.0, 2.0, 2.0]]), 3)
    assert ranking.settles(torch.tensor([[2.0], [2.0]])).tolist() == [True, False]
    assert rank(torch.ones(2, 4), 4).settles(torch.ones(2, 1)).tolist() == [True, True]
