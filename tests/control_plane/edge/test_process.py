"""The control plane as a process."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.model_directory import write_model_directory

HEAVY = ("torch", "transformers", "worker", "kernels", "clients")


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    ports = ["--port", "0", "--metrics-port", "0", "--announce-port", "0"]
    return subprocess.run([sys.executable, "-m", "control_plane", *ports, *flags], capture_output=True, text=True, timeout=30)


def test_no_heavy_module_is_imported() -> None:
    code = f"import control_plane.__main__, control_plane.edge.server, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("flags", [["--model", "/nowhere"], ["--model"], []])
def test_a_wrong_configuration_is_one_line_and_exit_code_2(flags: list[str]) -> None:
    result = run(*flags)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr and "--model" in result.stderr.splitlines()[-1]


def test_sigterm_ends_an_idle_process_with_exit_code_0(tmp_path: Path) -> None:
    model = write_model_directory(tmp_path / "model")
    flags = ["--model", str(model), "--port", "0", "--metrics-port", "0", "--announce-port", "0"]
    process = subprocess.Popen([sys.executable, "-m", "control_plane", *flags], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert '"message": "serving"' in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in log) == (0, False)


@pytest.mark.parametrize("delay_seconds", [0.05, 0.1, 0.2, 0.4])
def test_an_interrupt_during_the_start_is_quiet(tmp_path: Path, delay_seconds: float) -> None:
    ports = ["--port", "0", "--metrics-port", "0", "--announce-port", "0"]
    flags = ["--model", str(write_model_directory(tmp_path / "model")), *ports]
    # The delay counts from where Python runs our first line: what comes before is not ours.
    code = (
        "import runpy, signal, sys;"
        "signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)));"
        "signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT));"
        "runpy.run_module('control_plane', run_name='__main__', alter_sys=True)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(delay_seconds), *flags], capture_output=True, text=True, timeout=30)
    assert result.returncode in (0, 130)  # 0: it served already
    assert "Traceback" not in result.stderr and "KeyboardInterrupt" not in result.stderr
