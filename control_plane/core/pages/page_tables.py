"""The pages of one sequence: the names of their contents, and the tables in which they stand.

Full pages are named by chained SHA-256 over every token from the start, so that equal names mean equal KV.
"""

from array import array
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field
from hashlib import sha256

_DOMAIN = b"pypto-serving kv page\0"


class PageHashes:
    """Hashes of the full pages of one growing token list, per page size; each is computed once.

    Page i's hash covers the tokens [0, (i + 1) * page_tokens), the page size and the salt.
    """

    __slots__ = ("_chains", "_salt", "_token_ids")

    def __init__(self, token_ids: TokenIds[int], salt: str) -> None:
        self._token_ids = token_ids
        self._salt = salt.encode()
        self._chains: dict[int, list[bytes]] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens hashed so far, over all page sizes."""
        return sum(page_tokens * len(chain) for page_tokens, chain in self._chains.items())

    def first(self, page_tokens: int, num_pages: int) -> list[bytes]:
        """Hashes of at least the first `num_pages` pages of `page_tokens` tokens; their tokens must be known."""
        chain = self._chains.setdefault(page_tokens, [])
        num_known = len(chain)
        if num_pages <= num_known:
            return chain
        assert num_pages * page_tokens <= len(self._token_ids), "a page's tokens must be known"
        parent = chain[-1] if chain else sha256(_DOMAIN + page_tokens.to_bytes(4, "little") + self._salt).digest()
        new = array("I", self._token_ids[num_known * page_tokens : num_pages * page_tokens])
        tokens, page_bytes = new.tobytes(), page_tokens * new.itemsize
        for start in range(0, len(tokens), page_bytes):
            parent = sha256(parent + tokens[start : start + page_bytes]).digest()
            chain.append(parent)
        return chain

    def adopt(self, other: "PageHashes", num_tokens: int) -> None:
        """Take over the hashes of the first `num_tokens` tokens from somebody who has the same ones."""
        assert self._salt == other._salt
        for page_tokens, chain in other._chains.items():
            own = self._chains.setdefault(page_tokens, [])
            own.extend(chain[len(own) : num_tokens // page_tokens])


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
