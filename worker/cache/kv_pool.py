"""How many pages a KV cache gets."""

from collections.abc import Sequence
from dataclasses import dataclass

from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.contract import MAX_PAGES
from worker.cache.kv_cache import CacheGroupSpec

# The rest is for weights that are still to be touched, activations, and whatever else runs on the machine.
_SHARE_OF_FREE_MEMORY = 0.4


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """The most that the lanes of a worker can ask for."""

    max_lanes: int
    max_model_len: int
    max_step_tokens: int
    num_partitions: int = 1


def size_pool(specs: Sequence[CacheGroupSpec], demand: PoolDemand, free_bytes: int, num_pages: int | None = None) -> tuple[int, ...]:
    """Pages per partition of every group: `num_pages` where given, else what the demand needs, as far as it fits into the memory.

    When not all fits, every group gets the same share of its need. Raises StartUpError when less than a page per group fits, or less than
    the given number.
    """
    wanted = [_wanted_pages(spec, demand) if num_pages is None else num_pages for spec in specs]
    wanted_bytes = sum(pages * spec.page_bytes for pages, spec in zip(wanted, specs, strict=True)) * demand.num_partitions
    if num_pages is not None and wanted_bytes > free_bytes:
        raise StartUpError(f"--num-pages {num_pages} takes {wanted_bytes:,} bytes; {free_bytes:,} bytes are free")
    wanted_in_all = sum(wanted) * demand.num_partitions
    if num_pages is not None and wanted_in_all > MAX_PAGES:
        raise StartUpError(f"--num-pages {num_pages} makes {wanted_in_all} pages, a worker may have {MAX_PAGES}")
    if num_pages is not None:
        return tuple(wanted)
    share = min(1.0, free_bytes * _SHARE_OF_FREE_MEMORY / wanted_bytes, MAX_PAGES / wanted_in_all)
    pages = tuple(int(share * pages) for pages in wanted)
    if min(pages) < 1:
        page_bytes = sum(spec.page_bytes for spec in specs)
        budget = f"{_SHARE_OF_FREE_MEMORY:.0%} of {free_bytes:,} free bytes"
        raise StartUpError(f"no KV page fits into the memory: {budget}; a page takes {page_bytes:,} bytes", exit_code=1)
    return pages


def _wanted_pages(spec: CacheGroupSpec, demand: PoolDemand) -> int:
    tokens = demand.max_model_len
    if spec.window_tokens is not None:
        # Pages leave the window only once the step that passed them is acknowledged.
        tokens = min(tokens, spec.window_tokens + 2 * demand.max_step_tokens + spec.page_tokens)
    lanes = -(-demand.max_lanes // demand.num_partitions)
    return lanes * -(-tokens // spec.page_tokens)
