"""An interrupt while a process starts: no output, and the exit code that shells expect."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("control_plane", "uvloop"),
        ("control_plane", "control_plane.edge.server"),
        ("worker", "worker.config"),
        ("worker", "torch"),
        ("clients", "clients.cli.main"),
        ("clients", "clients.cli.commands.generate"),
    ],
)
def test_an_interrupt_while_something_is_imported_is_quiet(package: str, module: str, tmp_path) -> None:
    code = f"""if True:
        import os, runpy, signal, sys
        class Interrupt:
            def find_spec(self, name, *_):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupt())
        sys.argv[1:] = {["--model", str(tmp_path)] if package != "clients" else ["generate", "--raw", "hi"]!r}
        runpy.run_module({package!r}, run_name="__main__")
    """
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")
