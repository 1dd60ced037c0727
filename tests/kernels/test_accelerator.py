"""The torch implementations for accelerators: they run anywhere, and what is promised of them holds by their construction."""

import pytest
import torch
from fakes.device.graphs import capturable

from kernels.accelerator import attention, rows
from kernels.accelerator.rows import BLOCK_ROWS, linear, rms_norm


@pytest.mark.parametrize("width", [1, 2, 3, 20, 64, 100])
def test_features_are_added_whatever_their_number(width):
    x = torch.randint(-8, 8, (3, width)).float()
    assert torch.equal(rows.sum_features(x), x.sum(-1, keepdim=True))


def test_zeros_after_the_keys_do_not_change_their_sum():
    x = torch.randn(2, 64, 3)
    for length in (128, 1024):
        assert torch.equal(rows.sum_keys(torch.nn.functional.pad(x, (0, 0, 0, length - 64))), rows.sum_keys(x))


@pytest.mark.parametrize("max_products", [1, 4 * 64 * 128, 4 * 256 * 128])
@pytest.mark.parametrize("more_pages", [0, 1, 40])
def test_attention_depends_neither_on_the_width_of_the_table_nor_on_memory(paged, monkeypatch, max_products, more_pages):
    sequences = paged([300, 5, 1, 90])
    chunks = [(0, 299, 300), (1, 4, 5), (2, 0, 1), (3, 89, 90)]
    operators = type("Operators", (), {"paged_attention": staticmethod(attention.paged_attention)})
    expected = sequences.attend(operators, chunks)
    monkeypatch.setattr(attention, "_MAX_PRODUCTS", max_products)
    object.__setattr__(sequences, "page_table", torch.nn.functional.pad(sequences.page_table, (0, more_pages), value=-1))
    assert torch.equal(sequences.attend(operators, chunks), expected)


@pytest.mark.parametrize("num_rows", [0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS])
def test_product_of_any_number_of_rows(dtype, random, num_rows):
    x, weight, bias = random(num_rows, 32), random(16, 32), random(16)
    torch.testing.assert_close(linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))


@pytest.mark.parametrize("num_rows", [1, 100])
def test_implementations_ask_nothing_of_the_host(paged, random, num_rows):
    sequences = paged([num_rows])
    with capturable():
        rms_norm(random(num_rows, 32), random(32), 1e-5)
        linear(random(num_rows, 32), random(16, 32), None)
        starts, positions = torch.tensor([0, num_rows]).int(), torch.arange(num_rows)
        attention.paged_attention(sequences.queries[0], sequences.k_cache, sequences.v_cache, sequences.page_table, starts, positions, 0.2)
