"""The pages of one cache group in one partition."""

from collections import OrderedDict, deque
from dataclasses import dataclass


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

        free --take--> referenced --drop--> fenced --step acknowledged--> free, or cached if it has a hash
          ^                ^------- acquire (prefix hit) -------'              |
          |                ^------- acquire (prefix hit) ----------------------|
          '--------------------------- evicted by take (least recently used) --'

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
        """Pages that `take` can hand out now."""
        return len(self._free) + len(self._cached)

    def counts(self) -> PageCounts:
        """Pages by state."""
        referenced = self.num_pages - self.num_available - self.num_fenced
        return PageCounts(len(self._free), self.num_fenced, len(self._cached), referenced)

    def take(self) -> int:
        """Hand out a page, evicting the least recently used cached one when none is free."""
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._cached))
            del self._cached[page]
            self._forget(page)
        self._references[page] = 1
        return page

    def find(self, page_hash: bytes) -> int | None:
        """Find the page with this content."""
        return self._page_of.get(page_hash)

    def is_cached(self, page: int) -> bool:
        """Whether `take` could hand the page out although it has content."""
        return page in self._cached

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
        assert self._references[page] > 0, "a page is dropped as often as it was taken"
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
        assert [references.get(page, 0) for page in range(self.num_pages)] == self._references
        fenced = {page for page in range(self.num_pages) if self._fences[page]}
        held = {page for page in range(self.num_pages) if self._references[page]}
        assert len(fenced) == self.num_fenced
        assert self._stale <= fenced
        states = [set(self._free), set(self._cached), fenced, held]
        assert len(self._free) == len(states[0]), "a page is free once"
        assert sum(map(len, states)) == len(set().union(*states)) == self.num_pages
        assert all(self._hashes[page] is not None for page in self._cached)
        assert all(self._hashes[page] is None for page in self._free)
        assert self._page_of == {h: page for page, h in enumerate(self._hashes) if h is not None}

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
