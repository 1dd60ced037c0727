from clients.bench.goodput import Limits
from clients.bench.plot import panels
from clients.bench.summary import summarize
from clients.bench.sweep import LevelOutcome
from clients.bench.timeline import Timeline


def outcome(name, *, rate=None, limits=None, failure=""):
    """Two requests in 4 seconds: TTFT of 1 and 2 s, TPOT of 1 s."""
    timelines = [Timeline(0.0, [1.0, 2.0], 2.0, failure=failure), Timeline(1.0, [3.0, 4.0], 4.0, failure=failure)]
    return LevelOutcome(summarize(name, timelines, limits), None, rate)


def test_latencies_are_drawn_against_throughput():
    ttft, tpot = panels([outcome("a"), outcome("b")])
    assert (ttft.title, ttft.names, tpot.title) == ("TTFT", ["a", "b"], "TPOT")
    assert ttft.lines["p50"] == [(1.0, 1500.0)] * 2
    assert tpot.lines["p99"] == [(1.0, 1000.0)] * 2


def test_goodput_is_drawn_against_the_rate_or_what_streams_sent():
    *_, goodput = panels([outcome("a", rate=8.0, limits=Limits(ttft_ms=1000)), outcome("b", limits=Limits(ttft_ms=1000))])
    assert goodput.title == "goodput: ttft_ms:1000"
    assert goodput.lines == {"within the limits": [(8.0, 0.25), (0.5, 0.25)], "all": [(8.0, 8.0), (0.5, 0.5)]}


def test_level_without_a_figure_is_left_out():
    ttft, _ = panels([outcome("a", failure="ABORTED"), outcome("b")])
    assert ttft.names == ["b"] and len(ttft.lines["p50"]) == 1
