"""The PyPTO kernels of embedding and argmax: exact."""

import pytest
import torch

from kernels.testing.depth import Depth

pytestmark = pytest.mark.kernels


@pytest.mark.kernels_fast
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_embedding_copies_rows(run, random, rows):
    table = random(50, 64)
    ids = torch.arange(rows) * 7 % 50
    ids[-1] = 49
    assert torch.equal(run("lookup:embedding", ids, table), table[ids])


def test_embedding_of_wide_rows(run, random):
    table, ids = random(5, 5120), torch.tensor([4, 0, 4])
    assert torch.equal(run("lookup:embedding", ids, table), table[ids])


def test_embedding_after_every_pass(run, random):
    table, ids = random(9, 32), torch.tensor([8, 0, 3, 3])
    assert torch.equal(run("lookup:embedding", ids, table, depth=Depth.ALL_PASSES), table[ids])


@pytest.mark.parametrize("shape", [(1, 16), (2, 97), (3, 4096), (5, 49152)])
def test_argmax_finds_the_greatest(run, shape):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run("lookup:argmax", logits), logits.argmax(-1))


@pytest.mark.kernels_fast
def test_argmax_takes_the_lowest_of_equals(run):
    logits = torch.zeros(4, 5000)
    logits[1, [4999, 17, 2048]] = 3.0
    logits[2, [2047, 2048]] = 1.0
    logits[3] = -5.0
    assert run("lookup:argmax", logits).tolist() == [0, 17, 2047, 0]


def test_argmax_of_a_whole_vocabulary(run):
    logits = torch.randn(2, 151936, generator=torch.Generator().manual_seed(0))
    logits[0, -1] = 100.0
    assert run("lookup:argmax", logits).tolist() == [151935, int(logits[1].argmax())]


def test_argmax_sees_through_what_is_masked(run):
    logits = torch.full((2, 300), -torch.inf)
    logits[1, 299] = -1e30
    assert run("lookup:argmax", logits).tolist()[1] == 299


def test_argmax_after_every_pass(run):
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(run("lookup:argmax", logits, depth=Depth.ALL_PASSES), logits.argmax(-1))
