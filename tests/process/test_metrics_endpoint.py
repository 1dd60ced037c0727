import socket
import struct
import threading
import time
from contextlib import ExitStack
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from pypto_serving.process.metrics_endpoint import serve_metrics
from pypto_serving.process.start_up import StartUpError


def test_a_scrape_shows_the_registry() -> None:
    registry = CollectorRegistry()
    Counter("steps", "Steps.", registry=registry).inc(3)
    endpoint = serve_metrics(registry, "127.0.0.1", 0)
    with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics") as answer:
        exposition = answer.read()
    assert b"steps_total 3.0" in exposition
    assert b"_created" not in exposition
    endpoint.close()


def test_colons_in_names_survive_a_scraper_that_would_rather_have_openmetrics() -> None:
    registry = CollectorRegistry()
    Gauge("vllm:running", "Running.", registry=registry)
    endpoint = serve_metrics(registry, "127.0.0.1", 0)
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    with urlopen(Request(f"http://127.0.0.1:{endpoint.port}/metrics", headers=accept)) as answer:
        assert b"\nvllm:running 0.0" in answer.read()
    endpoint.close()


def test_a_taken_port_is_one_clear_line() -> None:
    endpoint = serve_metrics(CollectorRegistry(), "127.0.0.1", 0)
    with pytest.raises(StartUpError, match=f"cannot serve metrics on 127.0.0.1:{endpoint.port}: Address already in use"):
        serve_metrics(CollectorRegistry(), "127.0.0.1", endpoint.port)
    endpoint.close()


def test_a_client_that_resets_its_connection_is_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = serve_metrics(CollectorRegistry(), "127.0.0.1", 0)
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET")
    with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics"):
        pass
    endpoint.close()
    assert capfd.readouterr().err == ""


def test_a_client_that_says_nothing_is_let_go(capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = serve_metrics(CollectorRegistry(), "127.0.0.1", 0, scraper_seconds=0.05)
    for beginning in (b"", b"GET /metrics HTTP/1.1\r\n"):
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as client:
            client.sendall(beginning)
            assert client.recv(1) == b""
    endpoint.close()
    assert capfd.readouterr().err == ""


def test_connections_that_say_nothing_take_few_threads_and_stop_no_scrape(capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = serve_metrics(CollectorRegistry(), "127.0.0.1", 0)
    num_threads = threading.active_count()
    with ExitStack() as cleanup:
        for beginning in (b"", b"GET /metrics HTTP/1.1\r\n") * 100:
            client = cleanup.enter_context(socket.create_connection(("127.0.0.1", endpoint.port), timeout=30))
            client.sendall(beginning)
        with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=10) as answer:
            assert answer.status == 200
        deadline = time.monotonic() + 10  # of some of those that were let go the threads are still ending
        while threading.active_count() - num_threads > 16:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    endpoint.close()
    assert capfd.readouterr().err == ""


def test_an_address_of_ipv6_can_be_scraped() -> None:
    endpoint = serve_metrics(CollectorRegistry(), "::1", 0)
    with urlopen(f"http://[::1]:{endpoint.port}/metrics", timeout=10) as answer:
        assert answer.status == 200
    endpoint.close()
