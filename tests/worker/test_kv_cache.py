"""How memory and demand decide the number of pages, and the layout of the cache tensors."""

import pytest
import torch

from pypto_serving.process.start_up import StartUpError
from worker.kv_cache import CacheGroupSpec, PoolDemand, allocate_cache, size_pool

GB = 10**9


def group(window_tokens: int | None = None, layers: int = 2) -> CacheGroupSpec:
    return CacheGroupSpec("group", tuple(range(layers)), 16, 2, 16, torch.float32, window_tokens)


def test_pool_holds_what_all_lanes_can_need_when_memory_allows() -> None:
    assert size_pool([group()], PoolDemand(max_lanes=4, max_model_len=100, max_step_tokens=32), 10 * GB) == (4 * 7,)


def test_pool_takes_at_most_two_fifths_of_free_memory() -> None:
    (pages,) = size_pool([group()], PoolDemand(max_lanes=256, max_model_len=4096, max_step_tokens=512), 10**8)
    assert 0.39e8 < pages * group().page_bytes <= 0.4e8


def test_windowed_group_needs_less() -> None:
    demand = PoolDemand(max_lanes=1, max_model_len=4096, max_step_tokens=32)
    full, windowed = size_pool([group(), group(window_tokens=64)], demand, 10 * GB)
    assert full == 256
    assert 64 // 16 < windowed < 20


def test_memory_is_shared_in_proportion_to_need() -> None:
    demand = PoolDemand(max_lanes=256, max_model_len=4096, max_step_tokens=32)
    full, windowed = size_pool([group(), group(window_tokens=64)], demand, 10**8)
    wanted_full, wanted_windowed = size_pool([group(), group(window_tokens=64)], demand, 10**4 * GB)
    assert full / wanted_full == pytest.approx(windowed / wanted_windowed, rel=0.01)


def test_partitions_share_the_lanes() -> None:
    demand = PoolDemand(max_lanes=4, max_model_len=160, max_step_tokens=32, num_partitions=2)
    assert size_pool([group()], demand, 10 * GB) == (2 * 10,)


def test_too_little_memory_is_one_clear_line() -> None:
    demand = PoolDemand(max_lanes=1, max_model_len=160, max_step_tokens=32)
    with pytest.raises(StartUpError, match=r"no KV page fits into the memory: 40% of 10,000 free bytes; a page takes 8,192 bytes"):
        size_pool([group()], demand, 10**4)


def test_given_number_of_pages_is_used() -> None:
    demand = PoolDemand(max_lanes=256, max_model_len=4096, max_step_tokens=32)
    assert size_pool([group(), group(window_tokens=64)], demand, GB, num_pages=5) == (5, 5)


def test_given_number_of_pages_has_to_fit() -> None:
    demand = PoolDemand(max_lanes=1, max_model_len=160, max_step_tokens=32)
    with pytest.raises(StartUpError, match=r"--num-pages 5 takes 40,960 bytes; 10,000 bytes are free"):
        size_pool([group()], demand, 10**4, num_pages=5)


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
    assert [group.row_bytes for group in cache.groups] == [2 * 8 * 4] * 2
