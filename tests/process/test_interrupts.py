"""A signal while a process starts: no output, and the exit code that shells expect, or that operations.md lists; SIGHUP does nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("control_plane", "uvloop"),
        ("control_plane", "control_plane.edge.server"),
        ("worker", "worker.config"),
        ("worker", "torch"),
        ("clients", "clients.cli.main"),
        ("clients", "clients.cli.generate"),
    ],
)
def test_hst_04_a_signal_while_something_is_imported_ends_the_process_quietly(
    package: str, module: str, signal: str, tmp_path: Path
) -> None:
    process = _run_and_signal(package, module, signal, tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == ({"SIGINT": 130, "SIGTERM": 0}[signal], "", "")


@pytest.mark.parametrize(("package", "module"), [("control_plane", "control_plane.edge.server"), ("worker", "worker.config")])
def test_hst_03_hang_up_while_something_is_imported_changes_nothing(package: str, module: str, tmp_path: Path) -> None:
    process = _run_and_signal(package, module, "SIGHUP", tmp_path)
    assert (process.returncode, len(process.stderr.splitlines())) == (2, 1)  # there is no model


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*_AS_PROCESS_1, "true"], capture_output=True, check=False).returncode != 0,
    reason="no process may be the first of a namespace here",
)
@pytest.mark.parametrize(("package", "module"), [("control_plane", "control_plane.edge.server"), ("worker", "torch")])
def test_hst_04_process_1_takes_sigterm_while_it_starts(package: str, module: str, tmp_path: Path) -> None:
    assert _run_and_signal(package, module, "SIGTERM", tmp_path, _AS_PROCESS_1).returncode == 0


def _run_and_signal(
    package: str, module: str, signal: str, directory: Path, within: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Start a process that gets a signal when it imports a module."""
    code = f"""if True:
        import os, runpy, signal, sys
        class Interrupt:
            def find_spec(self, name, *_):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.{signal})
        sys.meta_path.insert(0, Interrupt())
        sys.argv[1:] = {["--model", str(directory)] if package != "clients" else ["generate", "--raw", "hi"]!r}
        runpy.run_module({package!r}, run_name="__main__")
    """
    return subprocess.run([*within, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
