"""What rows draw: filters, penalties, biases, masks and seeds, row by row."""

import dataclasses

import numpy as np
import pytest
import torch
from fakes.device.steps import ids
from harness.sampling import bias, draw, lane_table, sample_rows

from worker.sampling.philox import Purpose, uniforms
from worker.sampling.sampler import sample
from worker.step import LaneSampling, SamplingColumns

_INF = float("inf")


def _frequencies(probabilities, count=10_000, **sampling):
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probabilities, dtype=np.float32))
    one = lane_table([LaneSampling(**{"temperature": 1.0, "seed": 5, **sampling})], len(logits)).sampling_rows(np.array([0]), {})
    columns = SamplingColumns(*(np.repeat(getattr(one.columns, name), count) for name in SamplingColumns.__slots__))
    rows = dataclasses.replace(one, columns=columns, indices=np.arange(count))
    return np.bincount(sample(torch.from_numpy(logits).expand(count, -1), rows).token_ids, minlength=len(probabilities))


_FILTERS = [
    ({}, [0.5, 0.3, 0.15, 0.05]),
    ({"top_p": 0.79}, [0.5, 0.3, 0, 0]),
    ({"top_p": 0.81}, [0.5, 0.3, 0.15, 0]),
    ({"top_p": 0.0001}, [1, 0, 0, 0]),
    ({"top_p": 0.0}, [1, 0, 0, 0]),
    ({"min_p": 0.4}, [0.5, 0.3, 0, 0]),
    ({"min_p": 1.0}, [1, 0, 0, 0]),
    ({"top_k": 1}, [1, 0, 0, 0]),
    ({"top_k": 3, "top_p": 0.6}, [0.5, 0.3, 0, 0]),
    ({"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0]),  # of what top-k keeps
    ({"top_k": 4}, [0.5, 0.3, 0.15, 0.05]),
    ({"top_k": 2**32 - 1}, [0.5, 0.3, 0.15, 0.05]),
    ({"min_p": 0.2, "top_p": 0.9, "top_k": 3}, [0.5, 0.3, 0.15, 0]),
    ({"temperature": 0.5}, [0.25, 0.09, 0.0225, 0.0025]),
]


@pytest.mark.parametrize(("sampling", "kept"), _FILTERS, ids=lambda value: str(value))
def test_smp_07_filters_keep_what_they_should_and_renormalise(sampling, kept):
    counts, expected = _frequencies([0.5, 0.3, 0.15, 0.05], **sampling), np.array(kept) / np.sum(kept)
    assert (counts[expected == 0] == 0).all()
    assert (np.abs(counts - 10_000 * expected) <= 4 * np.sqrt(10_000 * expected * (1 - expected))).all()


def test_ties_go_to_the_lowest_ids():
    logits = [1.0, 3.0, 3.0, 3.0]
    assert draw(logits, [LaneSampling()]) == [1]
    draws = draw(logits, [LaneSampling(temperature=1.0, top_k=2, seed=seed) for seed in range(100)])
    assert set(draws) == {1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-5, 1e-4])
def test_val_06_tiny_temperatures_are_greedy(temperature):
    assert draw([5.0, 7.0, 6.99], [LaneSampling(temperature=temperature, seed=seed) for seed in range(20)]) == [1] * 20


def test_val_06_huge_temperature_draws_uniformly():
    counts = np.bincount(draw([30.0, -30.0, 0.0, 1.0], [LaneSampling(temperature=1e6, seed=seed) for seed in range(400)]))
    assert (np.abs(counts - 100) < 4 * np.sqrt(75)).all()


def test_smp_03_repetition_penalty_sees_prompt_and_output_and_minds_the_sign():
    logits, sampling = [2.0, 1.9, -1.0, -1.2], LaneSampling(repetition_penalty=1.5)
    assert draw(logits, [sampling], token_ids=(0, 2)) == [1]
    assert draw(logits, [sampling], token_ids=(2, 0), num_prompt_tokens=1) == [1]
    assert draw([-_INF, -_INF, -1.0, -1.2], [sampling], token_ids=(0, 2)) == [3]


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_penalties_see_output_only(penalty):
    sampling = LaneSampling(**{penalty: 1.0})
    assert draw([2.0, 1.5, 0.0], [sampling], token_ids=(0, 0)) == [0]
    assert draw([2.0, 1.5, 0.0], [sampling], token_ids=(2, 0), num_prompt_tokens=1) == [1]


def test_frequency_penalty_counts_and_presence_penalty_does_not():
    history = {"token_ids": (2, 0, 0, 0), "num_prompt_tokens": 1}
    assert draw([2.0, 0.5, 0.0], [LaneSampling(presence_penalty=1.0)], **history) == [0]
    assert draw([2.0, 0.5, 0.0], [LaneSampling(frequency_penalty=1.0)], **history) == [1]


def test_smp_05_bias_steers():
    logits = [2.0, 1.0, 0.0]
    samplings = [LaneSampling(**bias({2: 100.0})), LaneSampling(), LaneSampling(**bias({0: -100.0})), LaneSampling(**bias({1: 1.5}))]
    assert draw(logits, samplings) == [2, 0, 1, 1]


def test_biases_of_a_token_named_twice_add_up():
    sampling = LaneSampling(bias_token_ids=ids(1, 1), bias_values=np.array([0.6, 0.6], dtype=np.float32))
    assert draw([1.0, 0.0], [sampling]) == [1]


def test_bias_comes_before_the_penalties():
    assert draw([1.0, 4.0], [LaneSampling(repetition_penalty=4.0, **bias({0: 10.0}))], token_ids=(0,)) == [1]


def test_end_tokens_cannot_be_drawn_before_the_minimum_length():
    fields = {"token_ids": (0, 0, 0), "end_token_ids": ids(1, 2)}
    assert draw([0.0, 9.0, 8.0], [LaneSampling()], min_length=4, **fields) == [0]
    assert draw([0.0, 9.0, 8.0], [LaneSampling()], min_length=3, **fields) == [1]


def test_mask_restricts_its_row_only():
    logits = [float(20 - i) for i in range(20)]
    masks = {1: bytes([0, 0b10, 0]), 2: bytes([0, 0, 0b1000])}
    assert draw(logits, [LaneSampling()] * 3, masks) == [0, 9, 19]


@pytest.mark.parametrize("sampling", [LaneSampling(), LaneSampling(temperature=1.0), LaneSampling(temperature=1.0, top_p=0.5)])
def test_smp_06_rows_without_anything_to_draw_fail_alone(sampling):
    logits = [[1.0, 2.0], [float("nan"), 2.0], [-_INF, -_INF], [_INF, 0.0], [2.0, 1.0]]
    sampled = sample_rows(logits, [sampling] * 5)
    assert sampled.failed.tolist() == [False, True, True, True, False]
    assert set(sampled.token_ids[[0, 4]].tolist()) <= {0, 1}


def test_smp_06_everything_masked_fails():
    assert sample_rows([1.0, 2.0], [LaneSampling(temperature=1.0, top_k=1)], {0: bytes(1)}).failed.all()


def test_val_08_seeds_of_64_bits_are_all_different():
    seeds = [0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    draws = draw(np.zeros(50_000), [LaneSampling(temperature=1.0, seed=seed) for seed in seeds])
    assert len(set(draws)) == len(seeds)


def test_index_decides_not_the_step():
    sampling = [LaneSampling(temperature=1.0, seed=3)]
    short, long = (draw(np.zeros(50_000), sampling, token_ids=(1,) * count) for count in (5, 6))
    assert short != long
    assert draw(np.zeros(50_000), sampling, token_ids=(2, 3, 4, 5, 6), num_prompt_tokens=2) == short


_KINDS = [
    {},
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.95},
    {"temperature": 5.0, "top_p": 0.99},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.0, "top_k": 5000, "top_p": 0.999, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, **bias({7: 2.0})},
]


@pytest.mark.parametrize("vocab_size", [49152, 50257])
def test_rows_are_batch_invariant(vocab_size):
    logits = torch.randn(33, vocab_size, generator=torch.Generator().manual_seed(1)) * 4
    logits[::3] = logits[::3].bfloat16().float()
    samplings = [LaneSampling(**{"seed": 1000 + row, **_KINDS[row % len(_KINDS)]}) for row in range(33)]
    together = draw(logits, samplings, token_ids=(7, 8, 9))
    for size in (1, 2, 7, 32):
        for start in (0, 33 - size):
            part = slice(start, start + size)
            assert draw(logits[part], samplings[part], token_ids=(7, 8, 9)) == together[part]


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_candidates_and_sorted_rows_draw_the_same(spread, monkeypatch):
    logits = (torch.randn(24, 6000, generator=torch.Generator().manual_seed(2)) * spread).bfloat16().float()
    samplings = [LaneSampling(temperature=1.0, seed=row, top_k=(row % 3) * 50, top_p=0.2 + 0.1 * (row % 8)) for row in range(24)]
    drawn = draw(logits, samplings)
    monkeypatch.setattr("worker.sampling.sampler._NUM_CANDIDATES", ())
    assert draw(logits, samplings) == drawn


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0])
def test_top_p_takes_its_share_of_all_that_a_large_top_k_keeps(spread, monkeypatch):
    logits = torch.randn(20, 6000, generator=torch.Generator().manual_seed(3)) * spread
    samplings = [LaneSampling(temperature=1.0, seed=row, top_k=200 * (row + 1), top_p=0.1 + 0.2 * (row % 5)) for row in range(20)]
    drawn = draw(logits, samplings)
    monkeypatch.setattr("worker.sampling.sampler._NUM_CANDIDATES", ())
    assert draw(logits, samplings) == drawn


def _draw_by_definition(logits, sampling, index):
    """One row sorted as a whole, and cut weight by weight."""
    weights = (logits - logits.max()).softmax(-1).numpy()
    order = np.lexsort((np.arange(len(weights)), -weights))[: sampling.top_k or None]
    sums = np.cumsum(weights[order], dtype=np.float64)
    total = sums[-1] if sampling.top_k else 1.0
    kept = order[: 1 + np.count_nonzero(sums[:-1] < np.float64(np.float32(sampling.top_p)) * total)]
    sums = np.cumsum(np.where(np.isin(np.arange(len(weights)), kept), weights, 0), dtype=np.float64)
    point = uniforms(np.array([sampling.seed], dtype=np.uint64), np.array([index]), Purpose.TOKEN)
    return int(np.searchsorted(sums, point * sums[-1], side="right")[0])


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_k", [0, 3, 2048, 2049, 4000])
def test_top_k_and_top_p_draw_what_their_definition_says_with_ties_too(spread, top_k):
    logits = (torch.randn(24, 6000, generator=torch.Generator().manual_seed(4)) * spread).bfloat16().float()
    shares = (0.001, 0.5, 0.9, 0.99, 0.9999, 0.9999999)
    samplings = [LaneSampling(temperature=1.0, seed=row, top_k=top_k, top_p=shares[row % len(shares)]) for row in range(24)]
    expected = [_draw_by_definition(row, sampling, 1) for row, sampling in zip(logits, samplings, strict=True)]
    assert draw(logits, samplings) == expected


def test_bias_of_any_size_leaves_the_biased_tokens_alone_to_be_drawn():
    samplings = [LaneSampling(temperature=0.5, seed=seed, **bias({1: 3e38, 2: 3e38})) for seed in range(50)]
    assert set(draw([0.0, 1.0, 1.0, 5.0], samplings)) == {1, 2}
