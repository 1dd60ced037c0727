import json
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from clients.bench.arrivals import Arrivals, Process, TracedRequest, read_trace


def gaps(arrivals, count=5000):
    return [later - earlier for earlier, later in pairwise(arrivals.times(count + 1))]


@pytest.mark.parametrize("process", Process)
def test_arrivals_have_the_rate(process):
    assert mean(gaps(Arrivals(10.0, process, seed=1))) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("process", [Process.POISSON, Process.BURSTY])
def test_arrivals_depend_on_the_seed_only(process):
    first, same, other = (Arrivals(10.0, process, seed=seed).times(50) for seed in (1, 1, 2))
    assert first == same != other


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [
        (Arrivals(10.0), 1.0),
        (Arrivals(10.0, Process.BURSTY, burstiness=1.0), 1.0),
        (Arrivals(10.0, Process.BURSTY, burstiness=0.25), 2.0),
        (Arrivals(10.0, Process.CONSTANT), 0.0),
    ],
)
def test_gaps_have_their_coefficient_of_variation(arrivals, variation):
    measured = gaps(arrivals)
    assert pstdev(measured) / mean(measured) == pytest.approx(variation, rel=0.1, abs=1e-6)


def line(**changed):
    return json.dumps({"at_seconds": 1, "prompt_tokens": 2, "max_tokens": 3} | changed)


def test_trace_is_read_in_the_order_of_its_times(tmp_path):
    path = tmp_path / "day.jsonl"
    path.write_text(f"{line(at_seconds=2.5, user='u')}\n\n{line()}\n")
    trace = read_trace(path)
    assert trace.requests == (TracedRequest(1.0, 2, 3), TracedRequest(2.5, 2, 3))
    assert (trace.name, trace.times(1), trace.lengths) == ("trace day.jsonl", [1.0], [(2, 3), (2, 3)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no request in it"),
        (f"{line()}\n{{", "line 2: "),
        ("[1]", "line 1: not a JSON object"),
        (line(at_seconds=-1), "line 1: at_seconds: -1 is not a number from 0 to 86400"),
        (line(at_seconds=float("nan")), "at_seconds: NaN is not"),
        (line(at_seconds=True), "at_seconds: true is not"),
        (line(prompt_tokens=0), "prompt_tokens: 0 is not an integer from 1 to 2147483647"),
        (line(prompt_tokens=1.5), "prompt_tokens: 1.5 is not"),
        (line(max_tokens=None), "max_tokens: null is not an integer from 1"),
    ],
)
def test_bad_trace_is_refused_with_line_field_and_limit(tmp_path, text, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{message}" if message.startswith("line") else message):
        read_trace(path)
