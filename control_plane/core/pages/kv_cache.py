"""Owner of every KV page of one worker."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from control_plane.core.pages.page_pool import PageCounts, PagePool
from control_plane.core.pages.page_tables import PageHashes, PageTables, PrefixHit
from control_plane.core.step import NO_PAGE, CacheGroup


def max_sequence_length(groups: Iterable[CacheGroup]) -> int:
    """Most tokens of a sequence that has a partition to itself; a sliding group with room to advance its window sets no limit."""
    limits = [group.num_pages * group.page_tokens for group in groups if group.num_pages < _window_pages(group)]
    return min(limits, default=2**31 - 1)


def _window_pages(group: CacheGroup) -> float:
    """Pages with which a sequence of any length can advance."""
    if group.window_tokens is None:
        return math.inf
    return -(-group.window_tokens // group.page_tokens) + 2


def _first_entry(group: CacheGroup, num_tokens: int) -> int:
    """First entry of a page table that the token after `num_tokens` tokens sees."""
    return 0 if group.window_tokens is None else max(0, num_tokens - group.window_tokens) // group.page_tokens


class KVCacheManager:
    """Pages of cache groups x partitions. Allocation is all-or-nothing over the groups.

    A dropped page is fenced by the highest step sent (`step_sent`) until that is acknowledged (`step_acked`).
    """

    def __init__(self, groups: Sequence[CacheGroup], num_partitions: int, prefix_caching: bool = True, watermark: float = 0.01) -> None:
        self._groups = groups
        self._sizes = [group.page_tokens for group in groups]
        self._pools = [[PagePool(group.num_pages) for group in groups] for _ in range(num_partitions)]
        self._reserves = [int(group.num_pages * watermark) for group in groups]
        self._alignment = math.lcm(*(group.page_tokens for group in groups))
        self._is_sliding = any(group.window_tokens is not None for group in groups)
        self._first_full = next((index for index, group in enumerate(groups) if group.window_tokens is None), None)
        self._misses = [PrefixHit(partition, 0, ((),) * len(groups)) for partition in range(num_partitions)]
        self._prefix_caching = prefix_caching
        self._live: set[PageTables] = set()
        self._sent_step_id = 0
        self._acked_step_id = 0
        self.version = 0  # changes with everything that can change a hit, or whether it fits
        self._next_audit = (0, 0, 0)  # partition, group and page

    # Steps

    def step_sent(self, step_id: int) -> None:
        """Note the highest step sent."""
        self._sent_step_id = step_id

    def step_acked(self, step_id: int) -> None:
        """Note the highest step acknowledged; lifts its fences."""
        self._acked_step_id = step_id
        self.version += 1
        for pools in self._pools:
            for pool in pools:
                pool.expire(step_id)

    # Admission

    def find_prefix(self, hashes: PageHashes, partition: int, max_tokens: int) -> PrefixHit:
        """Longest cached prefix of at most `max_tokens` tokens in a partition."""
        num_tokens = max_tokens if self._prefix_caching else 0
        pools = self._pools[partition]
        first_full = self._first_full
        if num_tokens < self._alignment or (
            first_full is not None and pools[first_full].find(hashes.first(self._sizes[first_full], 1)[0]) is None
        ):
            return self._misses[partition]  # like most
        runs: list[list[int] | None] = [None] * len(pools)  # of full groups
        for index, group in enumerate(self._groups):
            if group.window_tokens is None:
                runs[index] = run = self._match_from_start(group, pools[index], hashes, num_tokens)
                num_tokens = min(num_tokens, len(run) * group.page_tokens)
        num_tokens = self._match_windows(pools, hashes, num_tokens)
        tables = [
            self._window_table(group, pool, hashes, num_tokens) if run is None else run[: num_tokens // group.page_tokens]
            for group, pool, run in zip(self._groups, pools, runs, strict=True)
        ]
        return PrefixHit(partition, num_tokens, tuple(map(tuple, tables)))

    def prefix_of(self, pages: PageTables, max_tokens: int) -> PrefixHit:
        """Longest part of a sequence's computed start, at most `max_tokens` tokens, with which another one of equal tokens can begin."""
        num_tokens = min(max_tokens, pages.num_slots)
        num_tokens -= num_tokens % self._alignment
        firsts = [_first_entry(group, num_tokens) for group in self._groups]
        if any(first < num_trimmed for first, num_trimmed in zip(firsts, pages.num_trimmed, strict=True)):
            return self._misses[pages.partition]  # a shorter one would need still earlier pages
        ends = [num_tokens // size for size in self._sizes]
        tables = [(NO_PAGE,) * first + tuple(table[first:end]) for first, end, table in zip(firsts, ends, pages.tables, strict=True)]
        return PrefixHit(pages.partition, num_tokens, tuple(tables))

    def fits(self, hit: PrefixHit, num_tokens: int, keep_reserve: bool) -> bool:
        """Whether a sequence with this hit gets the pages for `num_tokens` tokens; `keep_reserve` leaves the watermark untouched."""
        for index, pool in enumerate(self._pools[hit.partition]):
            reserve = self._reserves[index] if keep_reserve else 0
            left = pool.num_available - self._num_wanted(index, hit, num_tokens) - reserve
            if left < 0 or left < pool.count_cached(hit.tables[index]):
                return False
        return True

    def admit(self, hashes: PageHashes, hit: PrefixHit, num_tokens: int) -> PageTables:
        """Take the pages of a sequence that `fits`: all of full groups, and of sliding groups those of the first token to compute."""
        self.version += 1
        tables = []
        for group, pool, hit_table in zip(self._groups, self._pools[hit.partition], hit.tables, strict=True):
            for page in hit_table:
                if page != NO_PAGE:
                    pool.acquire(page)
            reach = num_tokens if group.window_tokens is None else min(num_tokens, hit.num_tokens + 1)
            num_new = -(-reach // group.page_tokens) - len(hit_table)
            tables.append([*hit_table, *(pool.allocate() for _ in range(num_new))])
        pages = PageTables(hit.partition, hashes, tables, num_slots=0, next_publish=0)
        pages.num_trimmed = [table.count(NO_PAGE) for table in hit.tables]
        pages.num_hit = [len(table) for table in hit.tables]
        pages.num_published = list(pages.num_hit)
        self._measure_slots(pages)
        self._measure_published(pages)
        self._live.add(pages)
        return pages

    # Live sequences

    def room(self, pages: PageTables, num_tokens: int) -> int:
        """Number of leading tokens, at most `num_tokens`, for which `grow` finds a place in every group."""
        pools = self._pools[pages.partition]
        for group, pool, table in zip(self._groups, pools, pages.tables, strict=True):
            num_tokens = min(num_tokens, (len(table) + pool.num_available) * group.page_tokens)
        return num_tokens

    def shortage(self, pages: PageTables, num_tokens: int) -> list[int]:
        """Pages per group that a sequence lacks to hold `num_tokens` tokens."""
        return [max(0, -(-num_tokens // size) - len(table)) for size, table in zip(self._sizes, pages.tables, strict=True)]

    def num_referenced(self, partition: int) -> int:
        """Pages of a partition that somebody uses."""
        return sum([pool.num_referenced for pool in self._pools[partition]])

    def missing(self, partition: int, num_tokens: int) -> list[int]:
        """Pages per group that a new sequence of so many tokens lacks in a partition, once the steps in flight are acknowledged."""
        return [
            self._num_wanted(index, self._misses[partition], num_tokens) + self._reserves[index] - pool.num_available - pool.num_fenced
            for index, pool in enumerate(self._pools[partition])
        ]

    def is_available(self, partition: int, num_pages: Sequence[int]) -> bool:
        """Whether so many pages per group can be handed out now."""
        return all(pool.num_available >= wanted for pool, wanted in zip(self._pools[partition], num_pages, strict=True))

    def is_promised(self, partition: int, num_pages: Sequence[int]) -> bool:
        """Whether so many pages per group can be handed out once the steps in flight are acknowledged."""
        pools = self._pools[partition]
        return all(pool.num_available + pool.num_fenced >= wanted for pool, wanted in zip(pools, num_pages, strict=True))

    def grow(self, pages: PageTables, num_tokens: int) -> list[tuple[int, int]] | None:
        """Append the pages to hold `num_tokens` tokens: (group, page) in order; None and no change when one is missing."""
        pools, tables = self._pools[pages.partition], pages.tables
        for index, size in enumerate(self._sizes):
            if -(-num_tokens // size) - len(tables[index]) > pools[index].num_available:
                return None
        self.version += 1
        grown = []
        for index, size in enumerate(self._sizes):
            table, allocate = tables[index], pools[index].allocate
            for _ in range(-(-num_tokens // size) - len(table)):
                table.append(page := allocate())
                grown.append((index, page))
        self._measure_slots(pages)
        return grown

    def trim(self, pages: PageTables, num_acked: int) -> list[tuple[int, int]]:
        """Drop what left the windows: (group, leading NO_PAGE entries) of every table that changed."""
        if not self._is_sliding:
            return []
        changed = []
        for index, group in enumerate(self._groups):
            if group.window_tokens is None:
                continue
            first, end = pages.num_trimmed[index], max(0, num_acked - group.window_tokens) // group.page_tokens
            if end <= first:
                continue
            self.version += 1
            self._drop(self._pools[pages.partition][index], pages.tables[index][first:end])
            pages.tables[index][first:end] = [NO_PAGE] * (end - first)
            pages.num_trimmed[index] = end
            changed.append((index, end))
        return changed

    def publish(self, pages: PageTables, num_acked: int) -> None:
        """Make the full pages below `num_acked` acknowledged tokens findable."""
        self.version += 1
        pools = self._pools[pages.partition]
        for index, size in enumerate(self._sizes):
            first, end = pages.num_published[index], num_acked // size
            if self._is_sliding:
                first = max(first, pages.num_trimmed[index])
            if end <= first:
                continue
            if self._prefix_caching:
                hashes, table, publish = pages.hashes.first(size, end), pages.tables[index], pools[index].publish
                for entry in range(first, end):
                    publish(table[entry], hashes[entry])
            pages.num_published[index] = end
        self._measure_published(pages)

    def retract(self, pages: PageTables) -> None:
        """Let nobody find what a live sequence published; what it found itself stays."""
        self.version += 1
        for pool, table, first, end in zip(self._pools[pages.partition], pages.tables, pages.num_hit, pages.num_published, strict=True):
            for page in table[first:end]:
                if page != NO_PAGE:
                    pool.retract(page)

    def release(self, pages: PageTables, are_stale: bool = False) -> None:
        """Drop all pages of a sequence; the start of a prefix is evicted last. `are_stale`: before the pages of everybody else."""
        self._live.remove(pages)
        self.version += 1
        for pool, table, num_trimmed in zip(self._pools[pages.partition], pages.tables, pages.num_trimmed, strict=True):
            held = table[num_trimmed:]
            # What is dropped last is used most recently; of stale pages it is the first to go.
            self._drop(pool, held if are_stale else reversed(held), are_stale)

    # The whole

    def counts(self) -> PageCounts:
        """Pages by state, over groups and partitions."""
        return sum((pool.counts() for pools in self._pools for pool in pools), PageCounts())

    def forget_cached(self) -> int:
        """Free every cached page; returns how many."""
        self.version += 1
        return sum(pool.forget_cached() for pools in self._pools for pool in pools)

    def check_integrity(self) -> None:
        """Assert that no page is lost: free + fenced + cached + referenced = all, and every reference is a live sequence's."""
        for partition, pools in enumerate(self._pools):
            for index, pool in enumerate(pools):
                pool.check_integrity(self._references(partition, index))

    def audit(self, num_pages: int) -> None:
        """Assert it of at most `num_pages` pages, the next ones in each call, as far as can be told without a look at all."""
        partition, index, first = self._next_audit
        pool = self._pools[partition][index]
        end = min(first + num_pages, pool.num_pages)
        pool.check_pages(self._references(partition, index), range(first, end))
        if end < pool.num_pages:
            self._next_audit = (partition, index, end)
        elif index + 1 < len(self._groups):
            self._next_audit = (partition, index + 1, 0)
        else:
            self._next_audit = ((partition + 1) % len(self._pools), 0, 0)

    # Details

    def _references(self, partition: int, index: int) -> dict[int, int]:
        """References that the live sequences have on the pages of a pool."""
        live = (pages.tables[index] for pages in self._live if pages.partition == partition)
        return Counter(page for table in live for page in table if page != NO_PAGE)

    @staticmethod
    def _match_from_start(group: CacheGroup, pool: PagePool, hashes: PageHashes, num_tokens: int) -> list[int]:
        """Pages of at most `num_tokens` tokens that a full group has without a gap; hashes about twice as many at most."""
        num_pages, end = num_tokens // group.page_tokens, 0
        run: list[int] = []
        while len(run) == end < num_pages:
            start, end = end, min(2 * end + 1, num_pages)
            run += pool.find_run(hashes.first(group.page_tokens, end)[start:end])
        return run

    def _match_windows(self, pools: Sequence[PagePool], hashes: PageHashes, num_tokens: int) -> int:
        """Tokens, at most `num_tokens`, with which pages of all groups end and before which no last window lacks a page."""
        matched = -1
        while matched != num_tokens:
            matched = num_tokens = num_tokens - num_tokens % self._alignment
            for group, pool in zip(self._groups, pools, strict=True):
                if group.window_tokens is not None:
                    num_tokens = self._match_window(group, pool, hashes, num_tokens)
        return num_tokens

    @staticmethod
    def _match_window(group: CacheGroup, pool: PagePool, hashes: PageHashes, num_tokens: int) -> int:
        """Tokens, at most `num_tokens`, whose last window a sliding group has; walks back from the end, and begins anew before a gap."""
        entry = end = num_tokens // group.page_tokens
        chain = hashes.first(group.page_tokens, end)
        first = _first_entry(group, end * group.page_tokens)
        while entry > first:
            entry -= 1
            if pool.find(chain[entry]) is None:
                end, first = entry, _first_entry(group, entry * group.page_tokens)
        return end * group.page_tokens

    @staticmethod
    def _window_table(group: CacheGroup, pool: PagePool, hashes: PageHashes, num_tokens: int) -> list[int]:
        end = num_tokens // group.page_tokens
        first = _first_entry(group, num_tokens)
        return [NO_PAGE] * first + pool.find_run(hashes.first(group.page_tokens, end)[first:end])

    def _num_wanted(self, index: int, hit: PrefixHit, num_tokens: int) -> int:
        """Pages beside the hit that a group must have available for an admission."""
        group, table = self._groups[index], hit.tables[index]
        wanted = -(-num_tokens // group.page_tokens) - len(table)
        if group.window_tokens is None:
            return wanted
        return min(wanted, int(_window_pages(group)) - (len(table) - table.count(NO_PAGE)))

    def _drop(self, pool: PagePool, table: Iterable[int], are_stale: bool = False) -> None:
        fence = self._sent_step_id if self._sent_step_id > self._acked_step_id else 0
        for page in table:
            pool.drop(page, fence, are_stale)

    # Whenever a sequence fills a page both are measured, by a loop, which takes a third of what a list, `zip` and `min` of it take.

    def _measure_slots(self, pages: PageTables) -> None:
        pages.num_slots = len(pages.tables[0]) * self._sizes[0]
        for index in range(1, len(self._sizes)):
            pages.num_slots = min(pages.num_slots, len(pages.tables[index]) * self._sizes[index])

    def _measure_published(self, pages: PageTables) -> None:
        pages.next_publish = (pages.num_published[0] + 1) * self._sizes[0]
        for index in range(1, len(self._sizes)):
            pages.next_publish = min(pages.next_publish, (pages.num_published[index] + 1) * self._sizes[index])
