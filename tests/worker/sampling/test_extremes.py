"""The ends of what a request may ask for: never a NaN, never another token than the documentation says."""

import itertools

import numpy as np
import pytest
import torch
from fakes.device.steps import ids
from harness.sampling import bias, draw, sample_rows

from worker.sampling.token_entries import TokenCounts
from worker.step import LaneSampling

_LOGITS = [2.0, 1.9, -1.0, -1.2]
_OFF = [0, 4, 5, 2**31 - 1, 2**31, 2**32 - 1]  # values of top_k that keep everything of a vocabulary of 4


def _seeded(**sampling):
    return [LaneSampling(**{"temperature": 1.0, "seed": seed, **sampling}) for seed in range(30)]


def test_val_07_top_k_beyond_the_vocabulary_is_off():
    drawn = [draw(_LOGITS, _seeded(top_k=top_k)) for top_k in _OFF]
    assert len(set(drawn[0])) > 1 and drawn == [drawn[0]] * len(_OFF)


@pytest.mark.parametrize("temperature", [1.0, 1e8, 1e20, 3e38])
def test_top_k_of_one_is_greedy_at_every_temperature(temperature):
    samplings = [LaneSampling(temperature=temperature, top_k=1, seed=seed) for seed in range(5)]
    assert draw([1.0, 2.0, 2.0 + 2**-22, 1.0], samplings) == [2] * 5


def test_val_07_top_k_of_one_and_top_p_of_zero_are_greedy():
    assert draw(_LOGITS, _seeded(top_k=1)) == draw(_LOGITS, _seeded(top_p=0.0)) == [0] * 30


def test_val_07_top_p_of_one_is_off():
    assert draw(_LOGITS, _seeded(top_p=1.0)) == draw(_LOGITS, _seeded())


def test_val_08_seed_zero_is_a_seed():
    uniform = np.zeros(50_000)
    first, second = (draw(uniform, [LaneSampling(temperature=1.0, seed=seed) for seed in (0, 0, 1)]) for _ in range(2))
    assert first == second and first[0] == first[1] != first[2]


_EXTREMES = [
    {"temperature": 0.0},
    {"temperature": 1e-12},
    {"temperature": 1e-5},
    {"temperature": 1e-4},
    {"temperature": 2.0},
    {"temperature": 1e6},
    {"temperature": 3e38},
    {"temperature": 1.0, "top_k": 2**32 - 1, "top_p": 1e-30},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "min_p": 1e-30, "top_p": 0.999999},
    {"temperature": 1e6, "top_k": 3, "min_p": 0.999},
    {"temperature": 1.0, "repetition_penalty": 1e-45, "frequency_penalty": 2.0},
    {"temperature": 1.0, "repetition_penalty": 3e38, "presence_penalty": -2.0},
    {"temperature": 1e-4, "frequency_penalty": 3e38, "presence_penalty": -3e38},
    {"temperature": 1e-5, **bias({7: 100.0, 8: -100.0})},
    {"temperature": 1.0, **bias({7: 3e38, 8: -3e38})},
]


@pytest.mark.parametrize("vocab_size", [320, 50257])
def test_val_06_val_07_extremes_in_one_batch_draw_what_they_draw_alone(vocab_size):
    logits = torch.randn(len(_EXTREMES), vocab_size, generator=torch.Generator().manual_seed(5)) * 4
    samplings = [LaneSampling(seed=row, **sampling) for row, sampling in enumerate(_EXTREMES)]
    history = {"token_ids": (7, 8, 9, 9, 7), "num_prompt_tokens": 2}
    together = draw(logits, samplings, **history)
    assert together == [draw(row, [sampling], **history)[0] for row, sampling in zip(logits, samplings, strict=True)]
    assert together[:4] == logits[:4].argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_smp_06_penalties_beyond_float32_stop_at_its_ends(temperature):
    sampling = [LaneSampling(temperature=temperature, repetition_penalty=1e-45)]
    assert draw([3.0, 1.0, 2.0], sampling, token_ids=(1, 2)) == [1]  # both become the largest score
    assert draw([3.0, -1.0, 0.0], sampling, token_ids=(1, 2)) == [0]
    assert draw([-3.0, -1.0], [LaneSampling(temperature=temperature, repetition_penalty=3e38)], token_ids=(0, 1)) == [1]


@pytest.mark.parametrize("penalties", list(itertools.product([1e-45, 3e38], [-3e38, 3e38], [-3e38, 3e38])), ids=str)
def test_smp_06_no_penalty_excludes_a_token_or_brings_one_back(penalties):
    repetition, frequency, presence = penalties
    sampling = LaneSampling(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    history = {"token_ids": (0, 0, 1, 2), "num_prompt_tokens": 1}
    sampled = sample_rows([0.0, 1.0, -1.0], [sampling] * 2, {1: b"\x00"}, **history)
    assert sampled.failed.tolist() == sampled.excluded.tolist() == [False, True]
    assert draw([0.0, 1.0, -1.0], [sampling], {0: b"\x04"}, **history) == [2]


def test_smp_06_a_bias_of_the_whole_vocabulary_changes_nothing():
    everything = bias(dict.fromkeys(range(4), -100.0))
    assert draw(_LOGITS, _seeded(**everything)) == draw(_LOGITS, _seeded())
    assert draw(_LOGITS, [LaneSampling(**everything)]) == [0]


def test_smp_06_nothing_but_end_tokens_before_the_minimum_length_fails_beside_a_canary():
    fields = {"end_token_ids": ids(0, 1, 2, 3)}
    assert sample_rows(_LOGITS, [LaneSampling()], min_length=5, **fields).excluded.all()
    assert draw(_LOGITS, [LaneSampling()], min_length=1, **fields) == [0]


def test_smp_06_mask_and_minimum_length_both_hold():
    fields, masks = {"end_token_ids": ids(0, 1)}, {0: b"\x05", 1: b"\x03"}
    sampled = sample_rows(_LOGITS, [LaneSampling(temperature=1.0)] * 2, masks, min_length=5, **fields)
    assert sampled.excluded.tolist() == [False, True] and sampled.token_ids[0] == 2
    assert set(draw(_LOGITS, _seeded(), dict.fromkeys(range(30), b"\x05"), min_length=1, **fields)) == {0, 2}


def test_smp_06_a_bias_does_not_lift_a_mask_or_a_minimum_length():
    sampling = [LaneSampling(**bias({0: 100.0, 1: 100.0}))]
    assert draw(_LOGITS, sampling, {0: b"\x0d"}, min_length=5, end_token_ids=ids(0)) == [2]


@pytest.mark.parametrize("mask", [b"\x0f", b"\x0e"])
def test_smp_06_a_row_that_is_not_a_number_is_never_the_requests_fault(mask):
    sampled = sample_rows([float("nan"), 1.0, 2.0, 3.0], [LaneSampling()], {0: mask})
    assert sampled.failed.all() and not sampled.excluded.any()


def test_counts_follow_what_is_generated():
    counts, lanes = TokenCounts(), np.array([3, 1, 2])
    counts.put(3, ids(5, 6, 5), ids(6, 9), room=3)
    counts.put(2, ids(5), ids(), room=3)
    for token in (9, 9, 1):
        counts.append(lanes, np.array([token, 7, 5]))
    entries = counts.gather(lanes)
    assert list(zip(entries.rows, entries.token_ids, entries.values, strict=True)) == [
        (0, 5, 0),
        (0, 6, 1),
        (0, 9, 3),
        (0, 1, 1),
        (2, 5, 3),
    ]
    counts.drop(3)
    assert counts.gather(lanes).rows.tolist() == [2]
