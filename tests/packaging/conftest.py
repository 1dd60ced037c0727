"""The wheel, built once, and empty virtual environments away from the repository that install one extra of it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernels.cpu import extension

ROOT = Path(__file__).parents[2]
_START_SECONDS = 60.0


class Distributions(NamedTuple):
    """What is built, and the levels of instructions that the wheel has kernels for, best first."""

    sdist: Path
    wheel: Path
    levels: list[str]


class Installation:
    """A virtual environment with the wheel and one of its extras."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._environment |= {"PYPTO_SERVING_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.run("pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[{extra}]")
        (self.site_packages,) = folder.glob("lib/python*/site-packages")

    def run(self, program: str, *arguments: str, **environment: str) -> str:
        """Run an installed program to its end, and return what it printed."""
        done = subprocess.run(self._command(program, *arguments), capture_output=True, text=True, **self._place(environment))
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def refused(self, program: str, *arguments: str) -> str:
        """Run an installed program that ends with exit code 2, and return what it said on standard error."""
        done = subprocess.run(self._command(program, *arguments), capture_output=True, text=True, **self._place({}))
        assert done.returncode == 2, f"{program} {arguments}: {done.returncode}\n{done.stderr}"
        return done.stderr

    @contextmanager
    def serving(self, program: str, *arguments: str) -> Iterator[dict[str, Any]]:
        """Run an installed server on free ports as long as the block does; gives the event of its start."""
        log = self.folder / f"{program}.log"
        ports = ("--port", "0", "--metrics-port", "0", "--log-format", "json")
        with log.open("w") as file, subprocess.Popen(self._command(program, *ports, *arguments), stderr=file, **self._place({})) as process:
            try:
                yield _start_event(process, log)
            finally:
                process.terminate()
                process.wait(40)
        assert process.returncode == 0, log.read_text()

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.folder / "bin" / program), *arguments]

    def _place(self, environment: dict[str, str]) -> dict[str, Any]:
        return {"cwd": self.folder, "env": self._environment | environment}


def _start_event(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        for event in events:
            if event["message"] == "serving":
                return event
        time.sleep(0.1)
    raise AssertionError(f"not serving: {log.read_text()}")


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist, and the wheel that is built from it, with kernels for this CPU's best level and another one."""
    folder = tmp_path_factory.mktemp("dist")
    levels = [level for level in extension.levels() if level in (extension.levels()[0], "avx2")]
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "PYPTO_WHEEL_LEVELS": " ".join(levels)})
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Distributions(sdist, wheel, levels)


@pytest.fixture(scope="session")
def control_plane(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What the machine of a control plane has."""
    return Installation(tmp_path_factory.mktemp("control-plane"), distributions.wheel, "control-plane")


@pytest.fixture(scope="session")
def worker(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What the machine of a worker has."""
    return Installation(tmp_path_factory.mktemp("worker"), distributions.wheel, "worker")


@pytest.fixture(scope="session")
def client(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """What the machine of a client has."""
    return Installation(tmp_path_factory.mktemp("client"), distributions.wheel, "client")
