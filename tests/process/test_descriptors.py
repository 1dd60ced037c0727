"""The limit of file descriptors, in a process that may change its own."""

import json
import os
import subprocess
import sys


def _run(code: str) -> "subprocess.CompletedProcess[str]":
    limits = "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))\n"
    unwatched = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}  # which takes some, too
    return subprocess.run([sys.executable, "-c", limits + code], env=unwatched, capture_output=True, text=True, timeout=60, check=True)


def test_hst_03_soft_limit_becomes_the_hard_one() -> None:
    code = """if True:
        from pypto_serving.process import descriptors
        descriptors.raise_limit()
        print(resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    assert _run(code).stdout == "(128, 128)\n"


def test_hst_03_a_scraper_that_cannot_be_accepted_costs_no_core_and_is_served_later() -> None:
    code = """if True:
        import socket, time
        from contextlib import suppress
        from prometheus_client import CollectorRegistry
        from pypto_serving.process.metrics_endpoint import serve_metrics
        endpoint, scraper, taken = serve_metrics(CollectorRegistry(), "127.0.0.1", 0), socket.socket(), []
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        scraper.connect(("127.0.0.1", endpoint.port))
        cpu_seconds = time.process_time()
        time.sleep(1)
        print(time.process_time() - cpu_seconds)
        for descriptor in taken:
            os.close(descriptor)
        scraper.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
        print(scraper.recv(15).decode())
    """
    cpu_seconds, answer = _run(code).stdout.splitlines()
    assert float(cpu_seconds) < 0.1 and answer == "HTTP/1.0 200 OK"


def test_hst_03_descriptors_that_run_out_are_one_line_for_a_long_time() -> None:
    code = """if True:
        from pypto_serving.process import descriptors, logs
        logs.configure("json", "info")
        descriptors.DescriptorWatch().check()
        taken = []
        def take(count):
            taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(count - len(os.listdir("/proc/self/fd")) + 1))
        take(56)
        descriptors.DescriptorWatch().check()
        take(58)
        watch = descriptors.DescriptorWatch()
        watch.check()
        watch.check()
        try:
            take(1000)
        except OSError:
            descriptors.DescriptorWatch().check()
    """
    lines = [json.loads(line) for line in _run(code).stderr.splitlines()]
    assert all(line["level"] == "warning" and "file descriptors run out" in line["message"] for line in lines)
    assert [(line["open"], line["limit"]) for line in lines] == [(59, 64), (64, 64)]
