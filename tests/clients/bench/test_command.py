import asyncio
import json
import sys

import grpc
import pytest
from fakes.control_plane.inference_service import StreamFault
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily

from clients.cli.main import main
from pypto_serving.process.metrics_endpoint import serve_metrics

QUICK = ("--requests", "3", "--warmup", "1", "--prompt-tokens", "3", "--max-tokens", "4")
STREAMS = ("--concurrency", "1,2")


class TokenCounters:
    """What the fake has generated, and after the warm-up `extra` tokens."""

    def __init__(self, service, extra=0):
        self.service, self.extra = service, extra

    def collect(self):
        generated = self.service.num_generated
        prompts = 3 * len(self.service.seen)
        yield CounterMetricFamily("pypto_serving_generation_tokens", "", value=generated + self.extra * (generated > 4))
        yield CounterMetricFamily("pypto_serving_prompt_tokens", "", value=prompts)


@pytest.fixture
async def bench(server, tmp_path, capsys):
    """Runs the bench against the fake; returns exit status, standard output and the levels of its JSON."""
    written = tmp_path / "bench.json"

    async def run(*arguments):
        command = ["bench", *QUICK, "--target", server.target, "--json", str(written), *arguments]
        status = await asyncio.to_thread(main, command, {})
        levels = json.loads(written.read_text())["levels"] if written.exists() else []
        captured = capsys.readouterr()
        return status, captured.out + captured.err, levels

    return run


@pytest.fixture
def metrics_url(server):
    """Factory: the address of the fake's counters, off by `extra`."""
    endpoints = []

    def serve(extra=0):
        registry = CollectorRegistry()
        registry.register(TokenCounters(server.service, extra))
        endpoints.append(serve_metrics(registry, "127.0.0.1", 0))
        return f"http://127.0.0.1:{endpoints[-1].port}/metrics"

    yield serve
    for endpoint in endpoints:
        endpoint.close()


async def test_levels_are_measured_without_their_warm_up(bench):
    status, out, levels = await bench(*STREAMS)
    assert status == 0
    assert "concurrency 1: 3 requests" in out and "concurrency 2: 3 requests" in out
    assert [level["summary"]["received"] for level in levels] == [{"prompt": 9, "generation": 12}] * 2


async def test_counts_that_agree_with_the_servers_are_said_to(bench, metrics_url):
    status, out, levels = await bench(*STREAMS, "--metrics", metrics_url())
    assert status == 0 and "counts agree" in out
    assert [level["counted"] for level in levels] == [{"prompt": 9, "generation": 12}] * 2


async def test_counts_that_differ_fail(bench, metrics_url):
    status, out, _ = await bench(*STREAMS, "--metrics", metrics_url(extra=1))
    assert status == 1 and "counts DIFFER" in out


async def test_broken_streams_are_failures_and_not_resumed(bench, server):
    server.service.faults.extend([None, StreamFault(grpc.StatusCode.UNAVAILABLE, after_tokens=2)])
    status, out, levels = await bench("--concurrency", "1")
    assert status == 1 and "1 x UNAVAILABLE" in out
    assert levels[0]["summary"]["received"]["generation"] == 10


async def test_open_loop_sends_all_requests(bench):
    status, out, _ = await bench("--rate", "1000")
    assert status == 0 and "rate 1000/s: 3 requests" in out


@pytest.mark.parametrize("process", ["bursty", "constant"])
async def test_other_arrivals_are_named_and_their_lateness_measured(bench, process):
    status, out, levels = await bench("--rate", "1000", "--arrivals", process)
    assert status == 0 and f"rate 1000/s {process}" in out
    assert levels[0]["summary"]["lateness"]["p50"] >= 0


async def test_trace_is_replayed_with_its_lengths(bench, server, tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [(0.05, 5, 2), (0.0, 2, 12)]
    trace.write_text("".join(f'{{"at_seconds": {at}, "prompt_tokens": {prompt}, "max_tokens": {most}}}\n' for at, prompt, most in lines))
    status, out, levels = await bench("--trace", str(trace))
    assert status == 0 and "trace trace.jsonl: 2 requests" in out
    assert levels[0]["summary"]["received"]["generation"] == 14
    sent = [(len(spec.token_ids.ids), spec.stopping.max_tokens) for spec in server.service.seen]
    assert sent == [(2, 8), (2, 12), (5, 2)]  # the first is the warm-up


async def test_trace_that_is_cut_says_so(bench, tmp_path):
    (trace := tmp_path / "trace.jsonl").write_text(
        "".join(f'{{"at_seconds": {at}, "prompt_tokens": 3, "max_tokens": 4}}\n' for at in (0, 0.01, 700, 800))
    )
    status, out, levels = await bench("--requests", "4", "--trace", str(trace), "--max-seconds", "1")
    assert status == 0 and "cut short by --max-seconds: 2 of 4 requests were not sent" in out
    assert (levels[0]["summary"]["num_requests"], levels[0]["summary"]["num_unsent"]) == (2, 2)


async def test_every_rate_is_a_level(bench):
    status, out, levels = await bench("--rate", "1000,2000")
    assert status == 0 and "rate 1000/s: 3 requests" in out
    assert [level["rate"] for level in levels] == [1000, 2000]


@pytest.mark.parametrize("load", [("--concurrency", "3"), ("--rate", "1000")])
async def test_processes_share_a_load_over_channels_of_their_own(bench, server, load):
    status, out, levels = await bench(*load, "--processes", "2", "--channels", "2", "--requests", "9", "--warmup", "4")
    assert status == 0, out
    assert (levels[0]["summary"]["num_requests"], levels[0]["summary"]["received"]["generation"]) == (9, 36)
    assert len(server.service.seen) == 13
    assert len({tuple(spec.token_ids.ids) for spec in server.service.seen}) == 13


async def test_goodput_is_shown_and_written(bench):
    status, out, levels = await bench("--concurrency", "1", "--goodput", "ttft_ms:60000", "tpot_ms:60000")
    assert status == 0 and "3 of 3 requests within ttft_ms:60000 tpot_ms:60000" in out
    goodput = levels[0]["summary"]["goodput"]
    assert goodput["limits"] == {"ttft_ms": 60000, "tpot_ms": 60000, "e2el_ms": None}
    assert (goodput["num_requests"], goodput["requests_per_second"]) == (3, levels[0]["summary"]["requests_per_second"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--rate", "9", "--concurrency", "1"), "--concurrency and --rate, which sends at its times, exclude each other"),
        (("--arrivals", "constant"), "--arrivals: constant needs a --rate"),
        (("--rate", "9", "--burstiness", "0.5"), "--burstiness: 0.5 is of --arrivals bursty only"),
        (("--rate", "9", "--arrivals", "bursty", "--burstiness", "2"), "--burstiness: 2 is not a number from 0.01 to 1"),
        (("--goodput", "ttft_ms:1", "ttft_ms:2"), "--goodput: ttft_ms is given 2 times"),
        (("--max-tokens", "100"), "above the model's 64"),
        (("--shared-prefix", "4"), "--shared-prefix"),
        (("--requests", "0"), "--requests"),
        (("--json", "/nowhere/at/all.json"), "--json"),
        (("--plot", "/nowhere/at/all.png"), "--plot: there is no directory /nowhere/at"),
        (("--plot", "all.jpeg2000"), "--plot: all.jpeg2000 does not end in .png, .svg, .pdf"),
        (("--metrics", "http://127.0.0.1:1/"), "--metrics"),
    ],
)
async def test_impossible_load_is_bad_usage(bench, arguments, named):
    status, out, _ = await bench(*arguments)
    assert status == 2 and named in out


async def test_trace_that_begins_too_late_is_bad_usage(bench, tmp_path):
    (trace := tmp_path / "trace.jsonl").write_text('{"at_seconds": 20, "prompt_tokens": 6, "max_tokens": 5}')
    status, out, _ = await bench("--trace", str(trace), "--max-seconds", "10")
    assert status == 2 and "--max-seconds: 10 is before the first request of --trace, at 20" in out


async def test_plot_without_matplotlib_is_bad_usage(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, _ = await bench("--plot", "levels.png")
    assert status == 2 and "--plot: no package 'matplotlib' here: pip install 'pypto-serving[plots]'" in out


async def test_levels_are_drawn(bench, tmp_path):
    pytest.importorskip("matplotlib")
    status, _, _ = await bench(*STREAMS, "--goodput", "ttft_ms:60000", "--plot", str(tmp_path / "levels.png"))
    assert status == 0 and (tmp_path / "levels.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--trace: prompt_tokens + max_tokens: 65 is above the model's 64"),
        (("--rate", "9"), "--rate and --trace, which has its own times, exclude each other"),
        (("--concurrency", "9"), "--concurrency and --trace, which sends at its times, exclude each other"),
        (("--shared-prefix", "61"), "--shared-prefix: 61 is not within the longest prompt of --trace, 60"),
    ],
)
async def test_impossible_trace_is_bad_usage(bench, tmp_path, arguments, named):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_seconds": 0, "prompt_tokens": 60, "max_tokens": 5}')
    status, out, _ = await bench("--trace", str(trace), *arguments)
    assert status == 2 and named in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--rate", "5,0"), "argument --rate: 0 is not above 0"),
        (("--processes", "0"), "argument --processes: 0 is not an integer from 1 to 64"),
        (("--channels", "many"), "argument --channels: many is not an integer from 1 to 1024"),
        (("--arrivals", "regular"), "--arrivals: invalid choice: 'regular'"),
        (("--goodput", "itl:3"), "--goodput: itl:3: the limits are ttft_ms, tpot_ms, e2el_ms"),
        (("--goodput", "ttft_ms:0"), "--goodput: ttft_ms:0: 0 is not above 0"),
        (("--goodput", "ttft_ms:nan"), "--goodput: nan is not a finite number"),
        (("--trace", "/nowhere.jsonl"), "--trace: /nowhere.jsonl: No such file or directory"),
        (("--trace", "/dev/null"), "--trace: /dev/null: there is no request in it"),
    ],
)
def test_malformed_flag_is_bad_usage(capsys, arguments, named):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments], {})
    assert named in capsys.readouterr().err


async def test_nobody_listening_is_unreachable(dead_target):
    assert await asyncio.to_thread(main, ["bench", *QUICK, "--target", dead_target, "--connect-seconds", "0.1"], {}) == 3


async def test_a_report_that_cannot_be_written_names_its_file(bench):
    status, told, _ = await bench("--json", "/dev/full")
    assert (status, told.splitlines()[-1]) == (1, "error: --json: /dev/full: No space left on device")


async def test_a_plot_that_cannot_be_written_names_its_file(bench, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken.png").mkdir()
    status, told, _ = await bench("--plot", str(tmp_path / "taken.png"))
    assert (status, told.splitlines()[-1]) == (1, f"error: --plot: {tmp_path / 'taken.png'}: Is a directory")
