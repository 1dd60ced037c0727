"""The pages of one sequence."""

from dataclasses import dataclass, field

from control_plane.core.pages.page_hash import PageHashes


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Pages that hold the first `num_tokens` tokens of a sequence: one table per cache group, NO_PAGE where a window does not reach."""

    partition: int
    num_tokens: int
    tables: tuple[tuple[int, ...], ...]


@dataclass(slots=True, eq=False)
class PageTables:
    """One page table per cache group. Owned by the cache manager; others read.

    A table of a sliding group, page_tokens 4, window 6, 15 tokens acknowledged:

        entry     0    1    2   3   4
        tokens    0-3  4-7  8-  12- 16-
        page      -    -    7   3   9        num_trimmed = 2, since the next query sees the tokens from 9 on
    """

    partition: int
    hashes: PageHashes
    tables: list[list[int]]
    num_slots: int  # leading tokens that have a place in every group
    next_publish: int  # number of acknowledged tokens from which another page can be published
    num_trimmed: list[int] = field(default_factory=list)  # leading NO_PAGE entries, per group
    num_hit: list[int] = field(default_factory=list)  # leading entries that others computed, per group
    num_published: list[int] = field(default_factory=list)  # leading entries that were published or trimmed, per group

    @property
    def num_pages(self) -> int:
        """Pages held, over all groups."""
        return sum(self.num_held)

    @property
    def num_held(self) -> list[int]:
        """Pages held, per group."""
        return [len(table) - num_trimmed for table, num_trimmed in zip(self.tables, self.num_trimmed, strict=True)]
