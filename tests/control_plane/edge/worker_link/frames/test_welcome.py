"""Reading of handshakes."""

import pytest

from control_plane.edge.worker_link.frames.welcome import describe
from pypto_serving.wire.checks import FrameError
from pypto_serving.worker.v1 import worker_pb2


def _welcome() -> worker_pb2.Welcome:
    limits = worker_pb2.WorkerLimits(
        vocab_size=9, max_model_len=9, max_lanes=9, max_step_tokens=9, max_steps_in_flight=2, lease_ms=900, num_partitions=1
    )
    group = worker_pb2.CacheGroup(name="full", page_tokens=4, num_pages=8)
    return worker_pb2.Welcome(epoch=1, incarnation="a", model_fingerprint="f", numerics_id="n", limits=limits, cache_groups=[group])


def test_description_says_what_a_group_holds():
    (group,) = describe("host:1", _welcome()).cache_groups
    assert (group.page_tokens, group.num_pages, group.window_tokens) == (4, 8, None)


@pytest.mark.parametrize(
    "field", ["vocab_size", "max_model_len", "max_lanes", "max_step_tokens", "max_steps_in_flight", "lease_ms", "num_partitions"]
)
def test_limit_of_zero_is_refused_by_name(field):
    welcome = _welcome()
    setattr(welcome.limits, field, 0)
    with pytest.raises(FrameError, match=f"limits.{field}: 0, must be from"):
        describe("host:1", welcome)


@pytest.mark.parametrize("field", ["vocab_size", "max_lanes", "num_partitions"])
def test_limit_that_no_worker_has_is_refused_by_name(field):
    welcome = _welcome()
    setattr(welcome.limits, field, 2**32 - 1)
    with pytest.raises(FrameError, match=f"limits.{field}: 4294967295, must be from 1 to"):
        describe("host:1", welcome)


@pytest.mark.parametrize("field", ["page_tokens", "num_pages", "window_tokens"])
def test_empty_cache_group_is_refused_by_name(field):
    welcome = _welcome()
    setattr(welcome.cache_groups[0], field, 0)
    with pytest.raises(FrameError, match=f"'full': {field}: 0"):
        describe("host:1", welcome)


def test_more_pages_than_books_can_be_kept_on_are_refused():
    welcome = _welcome()
    welcome.cache_groups[0].num_pages = 2**18
    welcome.limits.num_partitions = 9
    with pytest.raises(FrameError, match="number of pages: 2359296, must be from 1 to 2097152"):
        describe("host:1", welcome)


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb"])
@pytest.mark.parametrize("field", ["incarnation", "model_fingerprint", "numerics_id"])
def test_name_that_is_none_is_refused(field, name):
    welcome = _welcome()
    setattr(welcome, field, name)
    with pytest.raises(FrameError, match=f"{field}: .*, must be 1 to 256 printable characters"):
        describe("host:1", welcome)


def test_a_worker_that_settles_on_a_version_of_its_own_is_refused():
    welcome = _welcome()
    welcome.protocol_version = 2
    with pytest.raises(FrameError, match="protocol_version: 2, must be from 1 to 1"):
        describe("host:1", welcome)
    welcome.protocol_version = 0  # of before there was a choice
    assert describe("host:1", welcome).epoch == 1
