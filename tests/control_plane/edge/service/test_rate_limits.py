"""What callers are told of their quotas."""

from control_plane.edge.service.rate_limits import rate_limits
from control_plane.engine.ports import Quota, TenantUsage


def told(quota: Quota, num_requests: int, num_tokens: int) -> dict[str, str]:
    return {name.removeprefix("x-ratelimit-"): value for name, value in rate_limits(quota, TenantUsage(num_requests, num_tokens))}


def test_what_is_left_and_when_it_is_whole_again() -> None:
    assert told(Quota(600, 4), 1, 15) == {
        **{"limit-requests": "4", "remaining-requests": "3", "reset-requests": "0s"},
        **{"limit-tokens": "600", "remaining-tokens": "585", "reset-tokens": "1.5s"},
    }


def test_nothing_is_told_of_what_has_no_limit() -> None:
    assert told(Quota(), 1, 15) == {}
    assert set(told(Quota(None, 4), 1, 15)) == {"limit-requests", "remaining-requests", "reset-requests"}


def test_more_than_all_may_be_used() -> None:
    """By what runs on over its tokens, and by resumes over places."""
    assert told(Quota(60, 4), 5, 2_000_000) == {
        **{"limit-requests": "4", "remaining-requests": "0", "reset-requests": "1s"},
        **{"limit-tokens": "60", "remaining-tokens": "0", "reset-tokens": "2000000s"},
    }
