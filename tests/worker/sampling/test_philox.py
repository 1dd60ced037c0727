"""Random numbers: known answers, and independence of other rows."""

import numpy as np
import pytest

from worker.sampling.philox import Purpose, philox4x32, uniforms

# kat_vectors of Random123, philox4x32 with 10 rounds.
_KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)[:, None]


@pytest.mark.parametrize(("counter", "key", "words"), _KNOWN_ANSWERS)
def test_known_answers(counter, key, words):
    assert philox4x32(_column(*counter), _column(*key)).ravel().tolist() == list(words)


def test_columns_do_not_mix():
    counters, keys = (np.concatenate([_column(*answer[place]) for answer in _KNOWN_ANSWERS], axis=1) for place in (0, 1))
    assert philox4x32(counters, keys).T.tolist() == [list(answer[2]) for answer in _KNOWN_ANSWERS]


def test_uniform_is_the_first_word_of_counter_index_and_purpose():
    seed, index = 0x299F31D0A4093822, 0x85A308D3243F6A88 & (2**62 - 1)
    counter = _column(index & 0xFFFFFFFF, index >> 32, Purpose.TOKEN, 0)
    word = philox4x32(counter, _column(0xA4093822, 0x299F31D0))[0, 0]
    number = uniforms(np.array([seed], dtype=np.uint64), np.array([index]), Purpose.TOKEN)[0]
    assert number == (float(word) + 0.5) / 2**32


def test_uniforms_fill_the_open_interval():
    numbers = uniforms(np.zeros(100_000, dtype=np.uint64), np.arange(100_000), Purpose.TOKEN)
    assert numbers.min() > 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert np.abs(counts - 10_000).max() < 4 * np.sqrt(10_000 * 0.9)


def test_seeds_and_indices_give_other_numbers():
    seeds, indices = np.meshgrid(np.array([0, 1, 2**32, 2**63, 2**64 - 1], dtype=np.uint64), np.arange(200))
    numbers = uniforms(seeds.ravel(), indices.ravel().astype(np.int64), Purpose.TOKEN)
    assert len(np.unique(numbers)) == 1000
