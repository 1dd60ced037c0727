"""write_kv."""

import pytest
import torch


def test_write_kv_puts_rows_at_their_slots_and_nowhere_else(operators, dtype, random):
    packed = random(3, 6 * 16)
    k, v = packed[:, 32:64].view(3, 2, 16), packed[:, 64:].view(3, 2, 16)
    k_cache, v_cache = torch.zeros(2, 4, 4, 2, 16, dtype=dtype)
    operators.write_kv(k, v, k_cache, v_cache, torch.tensor([15, 0, 6]))
    for cache, rows in ((k_cache, k), (v_cache, v)):
        assert torch.equal(cache.flatten(0, 1)[[15, 0, 6]], rows)
        assert cache.count_nonzero() == rows.count_nonzero()


@pytest.mark.parametrize("slot", [-17, 16])
def test_write_kv_refuses_a_slot_outside_the_cache(operators, dtype, random, slot):
    caches = torch.zeros(2, 4, 4, 2, 16, dtype=dtype)
    with pytest.raises((IndexError, RuntimeError)):
        operators.write_kv(random(1, 2, 16), random(1, 2, 16), *caches, torch.tensor([slot]))
