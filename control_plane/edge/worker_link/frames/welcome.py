"""The description of a worker, read out of its Welcome and checked: nonsense in it must not take the control plane down."""

from control_plane.core.step import CacheGroup, WorkerDescription
from pypto_serving.wire.checks import check_name, check_range
from pypto_serving.wire.contract import (
    MAX_CACHE_GROUPS,
    MAX_FEATURES,
    MAX_LANES,
    MAX_PAGES,
    MAX_VOCAB_SIZE,
    MIN_LEASE_SECONDS,
    MIN_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
)
from pypto_serving.worker.v1 import worker_pb2

_MAX_UINT32 = 2**32 - 1
_BOUNDS = {
    "vocab_size": (1, MAX_VOCAB_SIZE),
    "max_model_len": (1, _MAX_UINT32),
    "max_lanes": (1, MAX_LANES),
    "max_step_tokens": (1, _MAX_UINT32),
    "max_steps_in_flight": (1, _MAX_UINT32),
    "lease_ms": (int(MIN_LEASE_SECONDS * 1000), _MAX_UINT32),
    "num_partitions": (1, MAX_PAGES),
}


def describe(address: str, welcome: worker_pb2.Welcome) -> WorkerDescription:
    """Read a worker's description out of its Welcome; raises FrameError when it cannot be true."""
    limits = welcome.limits
    check_range("protocol_version", welcome.protocol_version or 1, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION)
    check_range("number of features", len(welcome.features), 0, MAX_FEATURES)
    for field, (low, high) in _BOUNDS.items():
        check_range(f"limits.{field}", getattr(limits, field), low, high)
    check_range("epoch", welcome.epoch, 1, 2**64 - 1)
    check_range("number of cache_groups", len(welcome.cache_groups), 1, MAX_CACHE_GROUPS)
    for field in ("incarnation", "model_fingerprint", "numerics_id"):
        check_name(field, getattr(welcome, field))
    if welcome.weights_digest:
        check_name("weights_digest", welcome.weights_digest)
    groups = tuple(_cache_group(group) for group in welcome.cache_groups)
    description = WorkerDescription(
        address=address,
        incarnation=welcome.incarnation,
        epoch=welcome.epoch,
        numerics_id=welcome.numerics_id,
        vocab_size=limits.vocab_size,
        max_model_len=limits.max_model_len,
        max_lanes=limits.max_lanes,
        max_step_tokens=limits.max_step_tokens,
        max_steps_in_flight=limits.max_steps_in_flight,
        lease_seconds=limits.lease_ms / 1000,
        num_partitions=limits.num_partitions,
        cache_groups=groups,
        features=frozenset(welcome.features),
    )
    check_range("number of pages", num_pages_of(description), 1, MAX_PAGES)
    return description


def num_pages_of(worker: WorkerDescription) -> int:
    """Pages of all cache groups and partitions."""
    return worker.num_partitions * sum(group.num_pages for group in worker.cache_groups)


def _cache_group(group: worker_pb2.CacheGroup) -> CacheGroup:
    check_name("cache group", group.name)
    for field in ("page_tokens", "num_pages"):
        check_range(f"cache group {group.name!r}: {field}", getattr(group, field), 1, _MAX_UINT32)
    if group.HasField("window_tokens"):
        check_range(f"cache group {group.name!r}: window_tokens", group.window_tokens, 1, _MAX_UINT32)
    return CacheGroup(
        page_tokens=group.page_tokens,
        num_pages=group.num_pages,
        window_tokens=group.window_tokens if group.HasField("window_tokens") else None,
    )
