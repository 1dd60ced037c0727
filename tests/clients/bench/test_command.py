import asyncio
import json

import grpc
import pytest
from fakes.control_plane.inference_service import StreamFault
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily

from clients.cli.main import main
from pypto_serving.process.metrics_endpoint import serve_metrics

QUICK = ("--concurrency", "1,2", "--requests", "3", "--warmup", "1", "--prompt-tokens", "3", "--max-tokens", "4")


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
    status, out, levels = await bench()
    assert status == 0
    assert "concurrency 1: 3 requests" in out and "concurrency 2: 3 requests" in out
    assert [level["summary"]["received"] for level in levels] == [{"prompt": 9, "generation": 12}] * 2


async def test_counts_that_agree_with_the_servers_are_said_to(bench, metrics_url):
    status, out, levels = await bench("--metrics", metrics_url())
    assert status == 0 and "counts agree" in out
    assert [level["counted"] for level in levels] == [{"prompt": 9, "generation": 12}] * 2


async def test_counts_that_differ_fail(bench, metrics_url):
    status, out, _ = await bench("--metrics", metrics_url(extra=1))
    assert status == 1 and "counts DIFFER" in out


async def test_broken_streams_are_failures_and_not_resumed(bench, server):
    server.service.faults.extend([None, StreamFault(grpc.StatusCode.UNAVAILABLE, after_tokens=2)])
    status, out, levels = await bench("--concurrency", "1")
    assert status == 1 and "1 x UNAVAILABLE" in out
    assert levels[0]["summary"]["received"]["generation"] == 10


async def test_open_loop_sends_all_requests(bench):
    status, out, _ = await bench("--rate", "1000")
    assert status == 0 and "rate 1000/s: 3 requests" in out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--max-tokens", "100"), "above the model's 64"),
        (("--shared-prefix", "4"), "--shared-prefix"),
        (("--requests", "0"), "--requests"),
        (("--json", "/nowhere/at/all.json"), "--json"),
        (("--metrics", "http://127.0.0.1:1/"), "--metrics"),
    ],
)
async def test_impossible_load_is_bad_usage(bench, arguments, named):
    status, out, _ = await bench(*arguments)
    assert status == 2 and named in out


async def test_nobody_listening_is_unreachable(dead_target):
    assert await asyncio.to_thread(main, ["bench", *QUICK, "--target", dead_target, "--connect-seconds", "0.1"], {}) == 3
