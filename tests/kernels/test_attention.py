"""paged_attention."""

import pytest
import torch

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200]


def exact(paged, sequence, window=0):
    """Softmax attention of a whole sequence in float64."""
    q, k, v = (rows[sequence].double() for rows in (paged.queries, paged.keys, paged.values))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
    hidden = (distance < 0) | (distance >= window if window else torch.zeros_like(distance, dtype=torch.bool))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def assert_near(ours, expected):
    """Within half a unit in the last place of bf16 (values reach 4), or a few of fp32."""
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=8e-3 if ours.dtype == torch.bfloat16 else 5e-6)


@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((16, 8), 128), ((4, 4), 16), ((8, 1), 48), ((3, 1), 20)])
def test_attention_equals_softmax_in_float64(operators, paged, heads, head_dim):
    sequences = paged([70, 33], heads, head_dim)
    out = sequences.attend(operators, [(0, 0, 70), (1, 0, 33)])
    assert_near(out, torch.cat([exact(sequences, 0), exact(sequences, 1)]))


@pytest.mark.parametrize("page_tokens", [1, 7, 16, 64, 128])
def test_attention_over_ragged_lengths_and_page_sizes(operators, paged, page_tokens):
    sequences = paged(LENGTHS, page_tokens=page_tokens)
    out = sequences.attend(operators, [(s, 0, length) for s, length in enumerate(LENGTHS)])
    assert_near(out, torch.cat([exact(sequences, s) for s in range(len(LENGTHS))]))


@pytest.mark.parametrize("length", [511, 512, 513, 600, 1000])
def test_attention_far_along_a_sequence(operators, paged, length):
    sequences = paged([length])
    assert_near(sequences.attend(operators, [(0, length - 2, length)]), exact(sequences, 0)[-2:])


def exact_last(paged, sequence, length):
    """Softmax attention of the last row of a sequence in float64."""
    q, k, v = paged.queries[sequence][length - 1].double(), paged.keys[sequence][:length].double(), paged.values[sequence][:length].double()
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[1], dim=1) for x in (k, v))
    return torch.einsum("hk,khd->hd", (torch.einsum("hd,khd->hk", q, k) * q.shape[1] ** -0.5).softmax(-1), v)


@pytest.mark.parametrize("junk", [1e4, torch.inf, torch.nan])
def test_mod_14_junk_beyond_the_valid_length_is_not_seen(operators, paged, dtype, junk):
    sequences, slots = paged([4096]), torch.arange(4096)
    slots = sequences.page_table[0].long()[slots // 16] * 16 + slots % 16
    for length in (4095, 1000, 600, 513, 512, 511, 129, 128, 127):
        for cache in (sequences.k_cache, sequences.v_cache):
            cache.view(-1, 2, 32)[slots[length:]] = junk
        out = sequences.attend(operators, [(0, length - 3, length)])
        tolerance = 4e-3 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(out[-1].double(), exact_last(sequences, 0, length), rtol=0, atol=tolerance)


@pytest.mark.parametrize("window", [1, 8, 64, 100])
@pytest.mark.parametrize("length", [7, 8, 9, 130])
def test_mod_08_window_is_exactly_as_wide_in_prefill_and_decode(operators, paged, window, length):
    sequences = paged([length])
    whole = sequences.attend(operators, [(0, 0, length)], window)
    assert_near(whole, exact(sequences, 0, window))
    assert torch.equal(sequences.attend(operators, [(0, length - 1, length)], window), whole[-1:])


def test_pages_that_left_the_window_may_be_gone(operators, paged):
    sequences = paged([150])
    whole = sequences.attend(operators, [(0, 140, 150)], window=20)
    sequences.page_table[0, :7] = -1
    assert torch.equal(sequences.attend(operators, [(0, 140, 150)], window=20), whole)


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("chunk", [1, 2, 7, 15, 16, 17, 33, 64, 100])
def test_rows_do_not_depend_on_the_chunking(operators, paged, chunk, window):
    sequences = paged([130], (9, 3), 64)
    whole = sequences.attend(operators, [(0, 0, 130)], window)
    pieces = [sequences.attend(operators, [(0, first, min(first + chunk, 130))], window) for first in range(0, 130, chunk)]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("num_rows", [*range(1, 33), 64])
def test_decode_rows_are_batch_invariant(operators, paged, num_rows):
    lengths = [(37 * i) % 150 + 1 for i in range(num_rows)]
    sequences = paged(lengths)
    together = sequences.attend(operators, [(s, length - 1, length) for s, length in enumerate(lengths)], padding=-num_rows % 8)
    for sequence in {0, num_rows // 2, num_rows - 1}:
        alone = sequences.attend(operators, [(sequence, lengths[sequence] - 1, lengths[sequence])])
        assert torch.equal(together[sequence], alone[0])


def test_mixed_prefill_and_decode_rows_do_not_depend_on_each_other(operators, paged):
    lengths = [90, 5, 64, 1, 33, 129, 70, 2, 17]
    sequences = paged(lengths)
    chunks = [(s, length - (1 if s % 3 else min(length, 40)), length) for s, length in enumerate(lengths)]
    together = sequences.attend(operators, chunks)
    assert torch.equal(together, torch.cat([sequences.attend(operators, [chunk]) for chunk in chunks]))


def test_number_of_threads_does_not_change_the_bits(operators, paged):
    lengths = [90, 5, 64, 1, 33, 129, 70, 2, 17]
    sequences = paged(lengths)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(sequences.attend(operators, [(s, 0, length) for s, length in enumerate(lengths)]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_rows_of_no_sequence_are_zero(operators, paged):
    sequences = paged([20])
    assert torch.equal(sequences.attend(operators, [(0, 10, 13)], padding=5)[3:], torch.zeros_like(sequences.queries[0][:5]))
    assert not sequences.attend(operators, [(0, 10, 10)], padding=2).any()


def test_later_keys_of_the_sequence_are_not_seen(operators, paged):
    sequences = paged([64])
    before = sequences.attend(operators, [(0, 10, 20)])
    sequences.k_cache.view(-1, 2, 32)[sequences.page_table[0, 2:4].long() * 16] = torch.nan
    assert torch.equal(sequences.attend(operators, [(0, 10, 20)]), before)


def spoil(sequences, sequence, position, junk, caches):
    """Puts `junk` in place of the key, the value or both at a position."""
    page, offset = int(sequences.page_table[sequence, position // 16]), position % 16
    for name in caches:
        getattr(sequences, name)[page, offset] = junk


@pytest.mark.parametrize(("junk", "caches"), [(torch.nan, ["v_cache"]), (-torch.inf, ["v_cache"]), (torch.inf, ["k_cache", "v_cache"])])
@pytest.mark.parametrize("window", [0, 20, 70])
@pytest.mark.parametrize("position", [9, 70])
def test_what_is_not_finite_changes_no_bit_of_rows_that_do_not_see_it(operators, paged, position, window, junk, caches):
    sequences = paged([150], (6, 2))
    before = sequences.attend(operators, [(0, 0, 150)], window)
    spoil(sequences, 0, position, junk, caches)
    seeing = slice(position, position + window if window else None)
    whole = sequences.attend(operators, [(0, 0, 150)], window)
    assert not whole[seeing].isfinite().any()
    assert torch.equal(whole[:position], before[:position])
    assert not window or torch.equal(whole[position + window :], before[position + window :])
    for row in (0, position - 1, position, position + 1, 80, 149):
        assert torch.equal(sequences.attend(operators, [(0, row, row + 1)], window).nan_to_num(), whole[row : row + 1].nan_to_num())
    chunks = torch.cat([sequences.attend(operators, [(0, row, min(row + 33, 150))], window) for row in range(0, 150, 33)])
    assert torch.equal(chunks.nan_to_num(), whole.nan_to_num())


def test_what_is_not_finite_stays_in_its_sequence(operators, paged):
    sequences = paged([70, 30, 90])
    before = sequences.attend(operators, [(0, 0, 70), (1, 29, 30), (2, 40, 90)])
    spoil(sequences, 1, 3, torch.nan, ["k_cache", "v_cache"])
    after = sequences.attend(operators, [(0, 0, 70), (1, 29, 30), (2, 40, 90)])
    assert after[70].isnan().all()
    assert torch.equal(after[:70], before[:70]) and torch.equal(after[71:], before[71:])


def test_queries_may_be_a_view_of_a_packed_projection(operators, paged, random):
    sequences = paged([9])
    packed = torch.cat([sequences.queries[0].flatten(1), random(9, 64)], dim=1)
    view = packed[:, :128].view(9, 4, 32)
    arguments = (sequences.k_cache, sequences.v_cache, sequences.page_table, torch.tensor([0, 9]).int(), torch.arange(9), 32**-0.5)
    assert torch.equal(operators.paged_attention(view, *arguments), sequences.attend(operators, [(0, 0, 9)]))


def test_great_scores_do_not_overflow(operators, paged):
    sequences = paged([100])
    sequences.queries[0].mul_(1000)
    assert sequences.attend(operators, [(0, 0, 100)]).isfinite().all()


def test_page_beyond_the_cache_is_refused(operators, paged):
    sequences = paged([20])
    sequences.page_table[0, 1] = len(sequences.k_cache)
    with pytest.raises(IndexError):
        sequences.attend(operators, [(0, 0, 20)])


def test_rows_beyond_the_batch_are_refused(operators, paged):
    sequences = paged([20])
    starts = torch.tensor([0, 21], dtype=torch.int32)
    if operators.paged_attention.__module__ == "kernels.accelerator.attention":
        pytest.skip("asks nothing of the host")
    with pytest.raises(IndexError):
        operators.paged_attention(
            sequences.queries[0], sequences.k_cache, sequences.v_cache, sequences.page_table, starts, torch.arange(20), 0.1, 0
        )
