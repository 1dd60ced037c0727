"""What the benchmark of planes reads from /proc and from metrics, and that it runs."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.checkpoints import make_checkpoint

from benchmarks.planes import usage
from benchmarks.planes.load import StreamLoad
from benchmarks.planes.measures import Scale, measure_tokens
from benchmarks.planes.usage import Buckets

_GAPS = Buckets({1.0: 10.0, 2.0: 20.0, 4.0: 20.0, math.inf: 25.0})
_EXPOSITION = """# TYPE gap histogram
gap_bucket{le="1.0"} 10.0
gap_bucket{le="+Inf"} 20.0
gap_sum 3.0
tokens_total{source="a"} 2.0
tokens_total{source="b"} 3.0
tokens_total_more 9.0
"""


@pytest.mark.parametrize(("share", "value"), [(0.2, 0.5), (0.4, 1.0), (0.6, 1.5), (0.99, 4.0)])
def test_quantiles_are_interpolated_within_their_bucket(share: float, value: float) -> None:
    assert _GAPS.quantile(share) == pytest.approx(value)


def test_histogram_without_values_has_no_quantile() -> None:
    assert math.isnan(Buckets({}).quantile(0.5))
    assert math.isnan((_GAPS - _GAPS).quantile(0.5))


def test_histograms_add_up_and_counters_are_summed() -> None:
    gaps = usage.buckets(_EXPOSITION, "gap")
    assert gaps.counts == {1.0: 10.0, math.inf: 20.0}
    assert (Buckets({}) + gaps + gaps).counts == {1.0: 20.0, math.inf: 40.0}
    assert usage.total(_EXPOSITION, "tokens_total") == 5.0


def test_time_and_memory_of_this_process_are_read() -> None:
    used = os.times()
    assert usage.cpu_seconds([os.getpid()]) == pytest.approx(used.user + used.system, abs=1.0)
    assert usage.own_bytes([os.getpid()]) > 10_000_000
    assert usage.available_bytes() > 0


def test_busiest_thread_but_the_first_is_found() -> None:
    work = "import threading\n\ndef spin():\n    print(threading.get_native_id(), flush=True)\n    while True: pass\n\n"
    others = "threading.Thread(target=threading.Event().wait).start()\n" * 2
    with subprocess.Popen([sys.executable, "-c", f"{work}{others}threading.Thread(target=spin).start()"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        spinning = int(child.stdout.readline())
        while usage.thread_seconds(child.pid, spinning) < 0.1:
            time.sleep(0.01)
        assert usage.busiest_other_thread(child.pid) == spinning
        child.kill()


def test_children_are_named_by_their_command_lines() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "a child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # before that the kernel may still load it
        assert usage.children(os.getpid())[child.pid].endswith("input() a child")
        child.communicate(b"\n")


def test_load_is_niced_where_that_is_asked_for() -> None:
    command = StreamLoad(8, 16, num_turns=2, is_nice=True).command("here:1", "--json", "x")
    assert command[:3] == ["nice", "-n", "19"] and command[-2:] == ["--json", "x"]
    assert {"--concurrency=8", "--max-tokens=16", "--requests=16"} <= set(command)


@pytest.mark.slow
def test_a_control_plane_is_measured(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, "llama")
    rows = list(
        measure_tokens(Scale(model, num_frontends=0, rounds=1, max_tokens=32, watch_seconds=1.0, num_probes=1, num_calls=1, num_held=1))
    )
    assert [row.work.partition(",")[0] for row in rows[:2]] == ["scheduler", "front end"]
    assert len(rows) == 4 and all(row.ratio >= 0 for row in rows)
