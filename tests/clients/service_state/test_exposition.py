"""Prometheus' text of control planes, and what is none."""

import http.server
import socket
import threading

import pytest

from clients.service_state.exposition import MetricsUnreadable, metrics_url, parse, scrape


@pytest.fixture
def serve():
    """Serves one body at an address, until the test ends."""
    servers = []

    def start(body, status=200):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        servers.append(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/metrics"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_samples_keep_the_label_that_matters():
    text = 'pypto_serving_calls_total{code="ok",method="Generate"} 3\npypto_serving_calls_total{code="ok",method="Tokenize"} 4\n'
    assert [(sample.label, sample.value) for sample in parse(text)] == [("ok", 3.0), ("ok", 4.0)]
    assert len({sample.series for sample in parse(text)}) == 2


def test_what_nobody_asks_for_is_not_even_parsed():
    assert parse("vllm:prompt_tokens_total 3\npypto_serving_workers{ 1\n# HELP x\npypto_serving_preemptions_total 1\n")[0].value == 1.0


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://a:9400", "http://a:9400/metrics"),
        ("http://a:9400/", "http://a:9400/metrics"),
        ("https://[::1]:9/x?y=1", "https://[::1]:9/x?y=1"),
    ],
)
def test_an_address_needs_no_path(text, url):
    assert metrics_url(text) == url


@pytest.mark.parametrize("text", ["file:///etc/passwd", "127.0.0.1:9400", "", "http://"])
def test_what_is_no_address_of_metrics_is_refused(text):
    with pytest.raises(ValueError, match="is not http"):
        metrics_url(text)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 200, "there is no pypto_serving_"),
        (b"<html>", 200, "there is no pypto_serving_"),
        (b"pypto_serving_preemptions_total \xff", 200, "decode"),
        (b"pypto_serving_preemptions_total one", 200, "could not convert"),
        (b"", 404, "Not Found"),
    ],
)
def test_what_is_no_metrics_of_a_control_plane_is_told(serve, body, status, reason):
    with pytest.raises(MetricsUnreadable, match=reason):
        scrape(serve(body, status))


def test_a_port_where_nobody_listens_is_told(dead_target):
    with pytest.raises(MetricsUnreadable, match="Connection refused"):
        scrape(f"http://{dead_target}/metrics")


def test_what_speaks_no_http_is_told_as_such():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"\x00\x00\x12\x04\x00\x00\r\n")  # as gRPC begins

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MetricsUnreadable, match="not with HTTP: is that the port of metrics"):
            scrape(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics")
        thread.join()
