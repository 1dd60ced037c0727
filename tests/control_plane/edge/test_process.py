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
    code = f"import control_plane.__main__, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
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
