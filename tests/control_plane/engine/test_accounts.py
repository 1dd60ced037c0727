"""A bucket of tokens, against what its definition says of any sequence of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.engine.accounts import TokenBucket

LIMITS = st.integers(1, 100_000)
PASSED = st.floats(0, 200, allow_nan=False)
EVENTS = st.lists(st.tuples(PASSED, st.integers(0, 200_000)), max_size=30)


@given(LIMITS, EVENTS)
def test_what_is_let_in_never_exceeds_a_minutes_tokens_and_what_flowed_in(limit, events):
    bucket, now, let_in = TokenBucket(limit, 0.0), 0.0, 0
    for passed, num_tokens in events:
        now += passed
        if num_tokens <= limit and not bucket.seconds_until(num_tokens, now):
            bucket.use(num_tokens, now)
            let_in += num_tokens
            assert let_in <= limit + limit * now / 60 + 1e-6 * limit


@given(LIMITS, EVENTS, st.data())
def test_who_comes_back_when_told_is_let_in_and_not_a_second_earlier(limit, events, data):
    bucket, now = TokenBucket(limit, 0.0), 0.0
    for passed, num_tokens in events:
        now += passed
        bucket.use(num_tokens, now)
    wanted = data.draw(st.integers(1, limit))
    seconds = bucket.seconds_until(wanted, now)
    if seconds > 1:
        assert bucket.seconds_until(wanted, now + seconds - 1) == pytest.approx(1, rel=1e-3)
    assert bucket.seconds_until(wanted, now + seconds * (1 + 1e-9) + 1e-6) == 0


@given(LIMITS, EVENTS)
def test_looking_changes_nothing(limit, events):
    looked_at, other, now = TokenBucket(limit, 0.0), TokenBucket(limit, 0.0), 0.0
    for passed, num_tokens in events:
        for part in (0.25, 0.5, 1.0):
            looked_at.used(now + passed * part)
        now += passed
        looked_at.use(num_tokens, now)
        other.use(num_tokens, now)
    assert looked_at.used(now) == pytest.approx(other.used(now), abs=1e-3)


@given(LIMITS, LIMITS, EVENTS)
def test_another_limit_keeps_what_is_used(limit, other, events):
    bucket, now = TokenBucket(limit, 0.0), 0.0
    for passed, num_tokens in events:
        now += passed
        bucket.use(num_tokens, now)
    used = bucket.used(now)
    bucket.set_limit(other, now)
    assert bucket.used(now) == used
    assert bucket.used(now + 6.0) == pytest.approx(max(0.0, used - other / 10))


def test_without_a_limit_everything_fits_at_once():
    bucket = TokenBucket(None, 0.0)
    bucket.use(10**12, 0.0)
    assert (bucket.used(0.0), bucket.seconds_until(10**12, 0.0)) == (0.0, 0.0)


def test_what_is_given_back_makes_it_full_at_most():
    bucket = TokenBucket(60, 0.0)
    bucket.use(30, 0.0)
    bucket.give_back(30, 20.0)
    assert bucket.seconds_until(60, 20.0) == 0
    assert bucket.used(20.0) == 0
