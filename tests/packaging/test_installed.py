"""The installed programs, each with its extra only, in folders that know nothing of the repository."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.checkpoints import TinyCheckpoint

from kernels.cpu import extension

KERNEL_SET = ("-c", "from kernels import ops; print(ops.kernel_set())")
STREAM = """
import sys
from clients import Client
with Client(sys.argv[1]) as client:
    print(len([event.text for event in client.stream("Once upon", max_tokens=8, temperature=0.0)]))
"""

pytestmark = pytest.mark.packaging


def test_a_control_plane_is_installed_without_torch(control_plane: Any) -> None:
    names = {path.name.partition("-")[0].lower() for path in control_plane.site_packages.iterdir()}
    assert {"control_plane", "tokenizers", "llguidance", "uvloop"} <= names
    assert not {name for name in names if "torch" in name or name in ("safetensors", "triton", "rich")}


@pytest.mark.parametrize("module", ["clients", "clients.client", "clients.async_client", "clients.cli.main", "clients.bench.sweep"])
def test_a_client_imports_what_it_installs(client: Any, module: str) -> None:
    client.run("python", "-c", f"import {module}")


@pytest.mark.parametrize(
    "program", ["pypto-serving-control", "pypto-serving-frontend", "pypto-serving-scheduler", "pypto-serving-worker", "pypto-serving"]
)
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_every_program_answers_at_once(request: pytest.FixtureRequest, program: str, flag: str) -> None:
    place = {"pypto-serving-worker": "worker", "pypto-serving": "client"}.get(program, "control_plane")
    assert program in request.getfixturevalue(place).run(program, flag) or flag == "--version"


def test_the_best_prebuilt_kernels_are_loaded(worker: Any, distributions: Any) -> None:
    assert worker.run("python", *KERNEL_SET).startswith(f"cpp-{distributions.levels[0]}-")
    for level in distributions.levels:
        assert worker.run("python", *KERNEL_SET, PYPTO_CPU_LEVEL=level).startswith(f"cpp-{level}-")


def test_kernels_are_built_on_demand_outside_the_installation(worker: Any, distributions: Any, tmp_path: Path) -> None:
    """Objects are taken from the cache that `make kernels` filled: compiling them takes minutes."""
    cache = tmp_path / "cpu-kernels"
    cache.mkdir()
    (cache / "objects").symlink_to(extension.user_builds() / "objects")
    before = sorted(worker.site_packages.rglob("*.so"))
    level = distributions.levels[-1]
    worker.run("python", "-m", "kernels.cpu.build", PYPTO_SERVING_CACHE=str(tmp_path), PYPTO_CPU_LEVEL=level)
    assert [path.name.rpartition("-")[0] for path in cache.glob("*.so")] == [extension.file_stem(level)]
    assert sorted(worker.site_packages.rglob("*.so")) == before


def test_installed_programs_serve_a_model(control_plane: Any, worker: Any, client: Any, tiny_checkpoint: TinyCheckpoint) -> None:
    model = str(tiny_checkpoint("llama"))
    with worker.serving("pypto-serving-worker", "--model", model, "--device", "cpu", "--threads", "1", "--num-pages", "64") as device:
        flags = ("--model", model, "--announce-port", "0", "--worker", device["address"])
        with control_plane.serving("pypto-serving-control", *flags) as server:
            told = client.run(
                "pypto-serving", "generate", "Once upon", "--raw", "--max-tokens", "8", "--target", server["address"], "--json"
            )
            assert json.loads(told.splitlines()[-1])
            assert int(client.run("python", "-c", STREAM, server["address"])) > 1
    assert "/cpp-" in device["numerics_id"]


@pytest.mark.parametrize(("program", "extra"), [("pypto-serving-control", "control-plane"), ("pypto-serving-worker", "worker")])
def test_a_program_without_its_extra_says_which_one_it_needs(client: Any, program: str, extra: str, tmp_path: Path) -> None:
    said = client.refused(program, "--model", str(tmp_path), "--port", "0", "--metrics-port", "0")
    assert said.endswith(f"pip install 'pypto-serving[{extra}]'\n") and len(said.splitlines()) == 1


def test_a_gateway_without_its_extra_says_which_one_it_needs(client: Any) -> None:
    said = client.refused("pypto-serving-gateway", "--port", "0")
    assert said.endswith("pip install 'pypto-serving[gateway]'\n") and len(said.splitlines()) == 1
