import pytest

from control_plane.core.pages.page_pool import PageCounts, PagePool


def test_pages_are_handed_out_once():
    pool = PagePool(3)
    assert {pool.allocate() for _ in range(3)} == {0, 1, 2}
    assert pool.num_available == 0


def test_a_fenced_page_is_not_available_until_its_step_is_acknowledged():
    pool = PagePool(1)
    pool.drop(pool.allocate(), fence=5)
    assert pool.counts() == PageCounts(fenced=1)
    pool.expire(4)
    assert pool.num_available == 0
    pool.expire(5)
    assert pool.counts() == PageCounts(free=1)


def test_a_published_page_stays_cached_behind_its_fence():
    pool = PagePool(1)
    page = pool.allocate()
    pool.publish(page, b"x")
    pool.drop(page, fence=5)
    assert pool.num_available == 0
    assert pool.find(b"x") == page
    pool.expire(5)
    assert pool.counts() == PageCounts(cached=1)


def test_a_fenced_page_can_be_acquired_and_its_old_fence_is_forgotten():
    pool = PagePool(1)
    page = pool.allocate()
    pool.publish(page, b"x")
    pool.drop(page, fence=5)
    pool.acquire(page)
    pool.expire(5)
    assert pool.counts() == PageCounts(referenced=1)
    pool.check_integrity({page: 1})


def test_a_page_dropped_twice_is_guarded_by_the_later_fence():
    pool = PagePool(1)
    page = pool.allocate()
    pool.publish(page, b"x")
    pool.drop(page, fence=5)
    pool.acquire(page)
    pool.drop(page, fence=6)
    pool.expire(5)
    assert pool.counts() == PageCounts(fenced=1)
    pool.expire(6)
    assert pool.counts() == PageCounts(cached=1)


def test_the_least_recently_used_page_is_evicted_and_loses_its_name():
    pool = PagePool(2)
    for name in (b"old", b"new"):
        page = pool.allocate()
        pool.publish(page, name)
        pool.drop(page, fence=0)
    pool.allocate()
    assert pool.find(b"old") is None
    assert pool.find(b"new") is not None


def test_the_first_of_equal_pages_stays_the_one_that_is_found():
    pool = PagePool(2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, b"x")
    pool.publish(second, b"x")
    pool.drop(second, fence=0)
    assert pool.find(b"x") == first
    assert pool.counts() == PageCounts(free=1, referenced=1)


def test_a_shared_page_is_dropped_by_its_last_owner():
    pool = PagePool(1)
    page = pool.allocate()
    pool.publish(page, b"x")
    pool.acquire(page)
    pool.drop(page, fence=0)
    assert pool.counts() == PageCounts(referenced=1)
    pool.drop(page, fence=0)
    assert pool.counts() == PageCounts(cached=1)


def test_a_page_dropped_too_often_is_an_error():
    pool = PagePool(1)
    page = pool.allocate()
    pool.drop(page, fence=0)
    with pytest.raises(AssertionError):
        pool.drop(page, fence=0)


def test_a_referenced_page_without_a_name_can_be_shared():
    pool = PagePool(1)
    page = pool.allocate()
    pool.acquire(page)
    pool.drop(page, fence=0)
    assert pool.counts() == PageCounts(referenced=1)
    pool.drop(page, fence=0)
    assert pool.counts() == PageCounts(free=1)


@pytest.mark.parametrize("fence", [0, 5])
def test_a_stale_page_is_evicted_before_older_ones(fence):
    pool = PagePool(2)
    for name in (b"old", b"stale"):
        page = pool.allocate()
        pool.publish(page, name)
        pool.drop(page, fence, is_stale=name == b"stale")
    pool.expire(fence)
    pool.allocate()
    assert pool.find(b"old") is not None
    assert pool.find(b"stale") is None


def test_a_stale_page_that_is_wanted_again_is_a_page_like_any_other():
    pool = PagePool(2)
    pages = [pool.allocate(), pool.allocate()]
    for page, name in zip(pages, (b"other", b"again"), strict=True):
        pool.publish(page, name)
    pool.drop(pages[1], fence=5, is_stale=True)
    pool.acquire(pages[1])
    pool.drop(pages[0], fence=6)
    pool.drop(pages[1], fence=6)
    pool.expire(6)
    pool.allocate()
    assert pool.find(b"again") is not None
