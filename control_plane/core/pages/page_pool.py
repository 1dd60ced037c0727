"""The pages of one cache group in one partition."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages by state; the sum is the size of the pool."""

    free: int = 0
    fenced: int = 0  # dropped, but a step in flight may still touch them
    cached: int = 0  # kept for prefix hits only
    referenced: int = 0

    def __add__(self, other: "PageCounts") -> "PageCounts":
        return PageCounts(
            self.free + other.free,
            self.fenced + other.fenced,
            self.cached + other.cached,
            self.referenced + other.referenced,
        )


class PagePool:
    """Who holds which page.

        free --allocate--> referenced --drop--> fenced --step acknowledged--> free, or cached if it has a hash
          ^                    ^------- acquire (prefix hit) -------'              |
          |                    ^------- acquire (prefix hit) ----------------------|
          '----------------------- evicted by allocate (least recently used) ------'

    A page that is dropped as a stale one is evicted before all others. A page that is dropped when no step is in flight skips the fence.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_fenced = 0
        self._free = list(range(num_pages - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._stale: set[int] = set()  # fenced pages that are to be evicted first
        self._fenced: deque[tuple[int, int]] = deque()  # (fence, page); entries of pages acquired again are stale
        self._references = [0] * num_pages
        self._fences = [0] * num_pages  # 0: not fenced
        self._hashes: list[bytes | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out now."""
        return len(self._free) + len(self._cached)

    def counts(self) -> PageCounts:
        """Pages by state."""
        return PageCounts(len(self._free), self.num_fenced, len(self._cached), self.num_referenced)

    def allocate(self) -> int:
        """Hand out a page, evicting the least recently used cached one when none is free."""
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._cached))
            del self._cached[page]
            self._forget(page)
        self._references[page] = 1
        return page

    @property
    def num_referenced(self) -> int:
        """Pages that somebody uses."""
        return self.num_pages - self.num_available - self.num_fenced

    def find(self, page_hash: bytes) -> int | None:
        """Find the page with this content."""
        return self._page_of.get(page_hash)

    def find_run(self, page_hashes: Iterable[bytes]) -> list[int]:
        """Find the pages with these contents, up to the first that is missing."""
        pages = list(map(self._page_of.get, page_hashes))
        found = pages[: pages.index(None)] if None in pages else pages
        return cast(list[int], found)

    def count_cached(self, pages: Iterable[int]) -> int:
        """How many of some pages `allocate` could hand out although they have content."""
        return sum(map(self._cached.__contains__, pages))

    def acquire(self, page: int) -> None:
        """Add a reference to a page that has a hash, or another one to a page that is referenced."""
        if self._references[page] == 0:
            assert self._hashes[page] is not None, "a page without a hash has lost its content"
            if self._fences[page]:
                self._fences[page] = 0
                self.num_fenced -= 1
                self._stale.discard(page)
            else:
                del self._cached[page]
        self._references[page] += 1

    def drop(self, page: int, fence: int, is_stale: bool = False) -> None:
        """Remove a reference; the page stays untouched until step `fence` is acknowledged. 0: it may be used at once.

        `is_stale`: if it becomes a cached one, it is the first to be evicted.
        """
        assert self._references[page] > 0, "a page is dropped as often as it was acquired"
        self._references[page] -= 1
        if self._references[page]:
            return
        if is_stale:
            self._stale.add(page)
        if fence:
            self._fences[page] = fence
            self._fenced.append((fence, page))
            self.num_fenced += 1
        else:
            self._settle(page)

    def publish(self, page: int, page_hash: bytes) -> None:
        """Make a full, computed page findable; of equal pages the first stays the one that is found."""
        if page_hash not in self._page_of and self._hashes[page] is None:
            self._hashes[page] = page_hash
            self._page_of[page_hash] = page

    def retract(self, page: int) -> None:
        """Let nobody find a referenced page any more, since its content is not what it should be."""
        assert self._references[page] > 0
        if self._hashes[page] is not None:
            self._forget(page)

    def expire(self, acked_step_id: int) -> None:
        """Lift the fences up to this step."""
        while self._fenced and self._fenced[0][0] <= acked_step_id:
            fence, page = self._fenced.popleft()
            if self._fences[page] == fence:
                self._fences[page] = 0
                self.num_fenced -= 1
                self._settle(page)

    def forget_cached(self) -> int:
        """Free every cached page; returns how many."""
        pages = list(self._cached)
        for page in pages:
            self._forget(page)
        self._free.extend(pages)
        self._cached.clear()
        return len(pages)

    def check_integrity(self, references: dict[int, int]) -> None:
        """Assert that every page is in exactly one state and has as many references as `references` says."""
        self.check_pages(references, range(self.num_pages))
        fenced = {page for page in range(self.num_pages) if self._fences[page]}
        assert len(fenced) == self.num_fenced
        assert self._stale <= fenced
        assert len(set(self._free)) == len(self._free), "a page is free once"
        assert len(self._page_of) == sum(page_hash is not None for page_hash in self._hashes)

    def check_pages(self, references: dict[int, int], pages: range) -> None:
        """Assert of some pages, and of as many entries of the free list, what one look at each can tell; and that the numbers add up."""
        assert len(self._free) + len(self._cached) + self.num_fenced + len(references) == self.num_pages
        for page in pages:
            num_references, page_hash = self._references[page], self._hashes[page]
            assert num_references == references.get(page, 0)
            states = (num_references > 0, self._fences[page] > 0, page in self._cached)
            assert sum(states) <= 1, "a page is in one state"
            assert page_hash is None or (any(states) and self._page_of[page_hash] == page)
            assert page_hash is not None or page not in self._cached
        for page in self._free[pages.start : pages.stop]:
            assert not (self._references[page] or self._fences[page] or page in self._cached)

    def _settle(self, page: int) -> None:
        if self._hashes[page] is None:
            self._free.append(page)
        else:
            self._cached[page] = None
            if page in self._stale:
                self._cached.move_to_end(page, last=False)
        self._stale.discard(page)

    def _forget(self, page: int) -> None:
        page_hash = self._hashes[page]
        assert page_hash is not None
        del self._page_of[page_hash]
        self._hashes[page] = None
