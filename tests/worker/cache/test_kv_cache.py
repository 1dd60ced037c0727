"""The layout of the cache tensors."""

import torch

from worker.cache.kv_cache import CacheGroupSpec, allocate_cache

CPU = torch.device("cpu")


def test_cache_is_zero_and_has_a_scratch_page_behind_all_partitions() -> None:
    spec = CacheGroupSpec("full", (0, 1), 16, 2, 8, torch.bfloat16)
    cache = allocate_cache([spec], [10], num_partitions=3, device=CPU)
    assert [tensor.shape for tensor in (*cache.keys, *cache.values)] == [torch.Size([31, 16, 2, 8])] * 4
    assert not any(tensor.any() for tensor in (*cache.keys, *cache.values))
    assert cache.scratch_slots == (30 * 16,)


def test_layers_keep_their_place_whatever_their_group() -> None:
    specs = [CacheGroupSpec("full", (0, 2), 4, 1, 8, torch.float32), CacheGroupSpec("window", (1,), 4, 1, 8, torch.float32, 8)]
    cache = allocate_cache(specs, [5, 2], num_partitions=1, device=CPU)
    assert [len(keys) for keys in cache.keys] == [6, 3, 6]
    assert [(group.num_layers, group.num_pages, group.window_tokens) for group in cache.groups] == [(2, 5, None), (1, 2, 8)]
