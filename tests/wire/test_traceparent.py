"""Which traceparents are taken; https://www.w3.org/TR/trace-context/ says so."""

import pytest

from pypto_serving.wire.traceparent import SpanParent, clean_traceparent, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(("flags", "is_sampled"), [("01", True), ("00", False), ("03", True), ("fe", False)])
def test_a_traceparent_is_read(flags: str, is_sampled: bool) -> None:
    assert read_traceparent(f"00-{TRACE}-{SPAN}-{flags}") == SpanParent(TRACE, SPAN, is_sampled)


def test_flags_that_are_not_known_are_not_handed_on() -> None:
    assert clean_traceparent(f"00-{TRACE}-{SPAN}-ff") == GOOD


@pytest.mark.parametrize("text", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what the future will be like", f"01-{TRACE}-{SPAN}-01-"])
def test_a_later_version_is_read_as_version_0(text: str) -> None:
    assert clean_traceparent(text) == GOOD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        GOOD.upper(),
        f" {GOOD}",
        f"{GOOD}\n",
        f"{GOOD}-more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01.more",
        f"0x-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"01-{TRACE}-{SPAN}-01-{'x' * 2000}",
    ],
)
def test_others_are_ignored(text: str) -> None:
    assert read_traceparent(text) is None
    assert clean_traceparent(text) == ""
