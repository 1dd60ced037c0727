"""What is left of a key's quota, as metadata of calls by the names of OpenAI's headers."""

from control_plane.edge.access.callers import Metadata
from control_plane.engine.ports import Quota, TenantUsage

_PLACE_SECONDS = 1  # as the engine says when to come back for a place


def rate_limits(quota: Quota, usage: TenantUsage) -> Metadata:
    """What may be used, what of it is left, and when it will be whole again; nothing of what has no limit."""
    told: list[tuple[str, str]] = []
    if (limit := quota.max_requests) is not None:
        left = max(0, limit - usage.num_requests)
        told += _told("requests", limit, left, 0.0 if left else _PLACE_SECONDS)
    if (limit := quota.tokens_per_minute) is not None:
        told += _told("tokens", limit, max(0, limit - usage.num_tokens), usage.num_tokens * 60 / limit)
    return tuple(told)


def _told(what: str, limit: int, left: int, reset_seconds: float) -> list[tuple[str, str]]:
    values = {"limit": str(limit), "remaining": str(left), "reset": f"{reset_seconds:.3f}".rstrip("0").rstrip(".") + "s"}
    return [(f"x-ratelimit-{name}-{what}", value) for name, value in values.items()]
