import itertools
import random

import pytest

from control_plane.core.pages.kv_cache import KVCacheManager, max_sequence_length
from control_plane.core.pages.page_pool import PagePool
from control_plane.core.pages.page_tables import PageHashes
from control_plane.core.step import NO_PAGE, CacheGroup


def group(page_tokens=4, num_pages=16, window=None) -> CacheGroup:
    return CacheGroup(page_tokens, num_pages, window)


def admit(kv, token_ids, num_tokens=None, partition=0):
    hashes = PageHashes(token_ids, "")
    hit = kv.find_prefix(hashes, partition, len(token_ids) - 1)
    return hit, kv.admit(hashes, hit, num_tokens or len(token_ids))


def leave_cached(kv, token_ids, partition=0) -> None:
    _, pages = admit(kv, token_ids, partition=partition)
    assert kv.grow(pages, len(token_ids)) is not None
    kv.publish(pages, len(token_ids))
    kv.release(pages)


def test_a_sequence_gets_pages_for_its_tokens():
    kv = KVCacheManager([group()], 1)
    _, pages = admit(kv, list(range(9)))
    assert len(pages.tables[0]) == 3
    assert pages.num_slots == 12


def test_only_full_acknowledged_pages_are_found():
    kv = KVCacheManager([group()], 1)
    tokens = list(range(12))
    _, pages = admit(kv, tokens)
    kv.publish(pages, 7)
    assert kv.find_prefix(PageHashes(tokens, ""), 0, 11).num_tokens == 4


def test_partitions_do_not_share():
    kv = KVCacheManager([group()], 2)
    leave_cached(kv, list(range(8)), partition=1)
    hashes = PageHashes(list(range(8)), "")
    assert [kv.find_prefix(hashes, partition, 8).num_tokens for partition in range(2)] == [0, 8]


def test_allocation_is_all_or_nothing_over_groups():
    kv = KVCacheManager([group(num_pages=16), group(num_pages=2)], 1)
    _, pages = admit(kv, list(range(8)))
    before = kv.counts()
    assert kv.grow(pages, 9) is None
    assert kv.counts() == before


def test_a_hit_ends_at_a_boundary_of_every_group():
    kv = KVCacheManager([group(page_tokens=2), group(page_tokens=6)], 1)
    leave_cached(kv, list(range(18)))
    assert kv.find_prefix(PageHashes(list(range(17)), ""), 0, 16).num_tokens == 12


def test_a_window_drops_what_it_left_and_keeps_the_rest():
    kv = KVCacheManager([group(window=6)], 1)
    _, pages = admit(kv, list(range(16)))
    kv.grow(pages, 16)
    assert kv.trim(pages, 15) == [(0, 2)]
    assert pages.tables[0][:2] == [NO_PAGE, NO_PAGE]
    assert pages.num_pages == 2
    kv.check_integrity()


def test_a_checkpoint_needs_the_pages_of_the_last_window_only():
    kv = KVCacheManager([group(), group(window=4)], 1)
    tokens = list(range(16))
    _, pages = admit(kv, tokens)
    for computed in (4, 8, 12, 16):
        kv.grow(pages, computed)
        kv.publish(pages, computed)
        kv.trim(pages, computed)
    kv.release(pages)
    hit = kv.find_prefix(PageHashes(tokens, ""), 0, 15)
    assert hit.num_tokens == 12
    assert hit.tables[1][:2] == (NO_PAGE, NO_PAGE)


def test_a_prefix_whose_window_was_evicted_is_shorter():
    kv = KVCacheManager([group(num_pages=16), group(num_pages=4, window=4)], 1)
    leave_cached(kv, list(range(16)))
    evicting = KVCacheManager([group(num_pages=16), group(num_pages=4, window=4)], 1)
    leave_cached(evicting, list(range(16)))
    _, other = admit(evicting, [50, 51, 52])
    assert kv.find_prefix(PageHashes(list(range(16)), ""), 0, 15).num_tokens == 12
    assert evicting.find_prefix(PageHashes(list(range(16)), ""), 0, 16).num_tokens == 12
    evicting.grow(other, 8)
    assert evicting.find_prefix(PageHashes(list(range(16)), ""), 0, 16).num_tokens == 8


def cached_at_random(
    groups: list[CacheGroup], num_tokens: int, shares: list[float], draw: random.Random
) -> tuple[KVCacheManager, PageHashes]:
    """A cache with random pages of each group, a share of them."""
    kv, hashes = KVCacheManager(groups, 1), PageHashes(list(range(num_tokens)), "")
    for spec, pool, share in zip(groups, kv._pools[0], shares, strict=True):
        for page_hash in hashes.first(spec.page_tokens, num_tokens // spec.page_tokens):
            if draw.random() < share:
                pool.publish(page := pool.allocate(), page_hash)
                pool.drop(page, 0)
    return kv, hashes


@pytest.mark.parametrize("seed", range(200))
def test_the_longest_prefix_is_found_whatever_is_missing(seed):
    draw = random.Random(seed)
    groups = [group(draw.choice([1, 2, 4]), 64, window) for window in draw.choice([(None, 5), (None, 3, 9), (6,), (2, 7, 12)])]
    kv, hashes = cached_at_random(groups, 60, [1.0 if spec.window_tokens is None else 0.85 for spec in groups], draw)

    def is_hit(num_tokens: int) -> bool:
        if any(num_tokens % spec.page_tokens for spec in groups):
            return False
        chains = [hashes.first(spec.page_tokens, num_tokens // spec.page_tokens)[: num_tokens // spec.page_tokens] for spec in groups]
        firsts = [0 if spec.window_tokens is None else max(0, num_tokens - spec.window_tokens) // spec.page_tokens for spec in groups]
        lookups = zip(kv._pools[0], chains, firsts, strict=True)
        return all(pool.find(page_hash) is not None for pool, chain, first in lookups for page_hash in chain[first:])

    for most in (59, 41):
        assert kv.find_prefix(hashes, 0, most).num_tokens == max(filter(is_hit, range(most + 1)))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_lookup_looks_at_each_page_a_few_times_only(share, monkeypatch):
    groups = [group(num_pages=1000), group(num_pages=1000, window=400)]
    kv, hashes = cached_at_random(groups, 4000, [1.0, share], random.Random(0))
    find, found = PagePool.find, []
    monkeypatch.setattr(PagePool, "find", lambda pool, page_hash: found.append(page_hash) or find(pool, page_hash))
    kv.find_prefix(hashes, 0, 3999)
    assert len(found) < 4 * 1000


def test_the_watermark_is_kept_for_running_sequences():
    kv = KVCacheManager([group(num_pages=200)], 1, watermark=0.01)
    hashes = PageHashes(list(range(4 * 199)), "")
    hit = kv.find_prefix(hashes, 0, 0)
    assert kv.fits(hit, 4 * 199, keep_reserve=False)
    assert not kv.fits(hit, 4 * 199, keep_reserve=True)
    assert kv.fits(hit, 4 * 198, keep_reserve=True)


def test_pages_of_a_hit_are_not_counted_as_available():
    kv = KVCacheManager([group(num_pages=4)], 1)
    leave_cached(kv, list(range(12)))
    hashes = PageHashes([*range(12), 90, 91], "")
    hit = kv.find_prefix(hashes, 0, 13)
    assert hit.num_tokens == 12
    assert kv.fits(hit, 16, keep_reserve=False)
    assert not kv.fits(hit, 17, keep_reserve=False)


def test_a_forgotten_cache_is_free():
    kv = KVCacheManager([group()], 1)
    leave_cached(kv, list(range(8)))
    assert kv.forget_cached() == 2
    assert kv.counts().free == 16


def test_a_sliding_group_limits_the_length_only_when_its_window_cannot_advance():
    assert max_sequence_length([group(num_pages=10)]) == 40
    assert max_sequence_length([group(num_pages=10), group(num_pages=4, window=8)]) == 40
    assert max_sequence_length([group(num_pages=10), group(num_pages=3, window=8)]) == 12


def test_a_lookup_hashes_little_beyond_what_it_finds():
    kv = KVCacheManager([group(num_pages=40)], 1)
    first, second = PageHashes(list(range(100)), ""), PageHashes([*range(20), *range(80)], "")
    assert kv.find_prefix(first, 0, 99).num_tokens == 0
    assert first.num_tokens == 4
    leave_cached(kv, list(range(100)))
    assert kv.find_prefix(second, 0, 99).num_tokens == 20
    assert second.num_tokens <= 2 * 20 + 4


def test_the_start_of_a_sequence_can_be_shared_without_a_prefix_cache():
    kv = KVCacheManager([group()], 1, prefix_caching=False)
    _, pages = admit(kv, list(range(11)))
    hit = kv.prefix_of(pages, 10)
    assert (hit.num_tokens, hit.tables) == (8, (tuple(pages.tables[0][:2]),))
    shared = kv.admit(pages.hashes, hit, hit.num_tokens)
    kv.release(pages)
    assert kv.counts().referenced == 2
    kv.check_integrity()
    kv.release(shared)
    assert kv.counts().free == 16


def test_what_a_window_lost_cannot_be_shared():
    kv = KVCacheManager([group(), group(window=4)], 1)
    _, pages = admit(kv, list(range(16)))
    kv.grow(pages, 16)
    assert kv.prefix_of(pages, 15).tables[1] == (NO_PAGE, NO_PAGE, pages.tables[1][2])
    kv.trim(pages, 13)
    assert [kv.prefix_of(pages, max_tokens).num_tokens for max_tokens in (16, 15, 11)] == [16, 12, 0]


def test_the_end_of_a_stale_sequence_is_evicted_first():
    kv = KVCacheManager([group(num_pages=3)], 1)
    leave_cached(kv, list(range(4)))
    hashes = PageHashes(list(range(50, 58)), "")
    pages = kv.admit(hashes, kv.find_prefix(hashes, 0, 7), 8)
    kv.publish(pages, 8)
    kv.release(pages, are_stale=True)
    admit(kv, [90])
    assert kv.find_prefix(hashes, 0, 8).num_tokens == 4
    assert kv.find_prefix(PageHashes(list(range(4)), ""), 0, 4).num_tokens == 4


@pytest.mark.parametrize("spoiled", [0, 70, 99])
def test_audits_of_a_few_pages_find_whatever_is_wrong_in_the_end(spoiled):
    kv = KVCacheManager([CacheGroup(4, 64), CacheGroup(2, 100)], num_partitions=2)
    kv._pools[1][1]._references[spoiled] = 1
    calls = itertools.count()
    with pytest.raises(AssertionError):
        while next(calls) < 40:
            kv.audit(10)
    assert next(calls) - 1 == 7 + 10 + 7 + min(spoiled, 99 - spoiled) // 10, "seen as a page, or as an entry of the free list"
