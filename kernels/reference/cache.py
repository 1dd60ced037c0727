"""Writing keys and values into the paged cache."""

from torch import Tensor


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts rows k and v [T, Hk, D] at slots [T] (page * page_tokens + offset) of the caches [pages, page_tokens, Hk, D]."""
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)
