"""What the sdist and the wheel hold."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from kernels.cpu import extension

ROOT = Path(__file__).parents[2]
STUBS = {
    f"pypto_serving/{package}/v1/{package}{suffix}"
    for package in ("admin", "inference", "log", "profile", "scheduler", "worker")
    for suffix in (".proto", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
}
SOURCES = {f"kernels/cpu/{path.name}" for pattern in ("*.cpp", "*.h") for path in extension.SOURCES.glob(pattern)}
PAGE = {path.relative_to(ROOT).as_posix() for path in (ROOT / "clients/gateway/page").iterdir()}
TYPED = {f"{package}/py.typed" for package in ("control_plane", "worker", "kernels", "clients", "pypto_serving")}

pytestmark = pytest.mark.packaging


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def modules(*folders: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")}


def test_the_wheel_holds_every_module_stub_source_and_mark(distributions: Any) -> None:
    expected = modules("control_plane", "worker", "kernels", "clients", "pypto_serving") | STUBS | SOURCES | TYPED | PAGE
    others = files(distributions.wheel) - expected
    assert not expected - files(distributions.wheel)
    assert {PurePosixPath(name).parts[0] for name in others if "dist-info" not in name} == {"kernels"}


def test_the_wheel_holds_kernels_for_each_level_and_says_where_they_run(distributions: Any) -> None:
    built = {PurePosixPath(name).name for name in files(distributions.wheel) if name.startswith("kernels/cpu/prebuilt/")}
    stems = {extension.file_stem(level) for level in distributions.levels}
    assert {name.rpartition("-")[0] for name in built} == stems and len(built) == len(stems)
    assert distributions.wheel.name.startswith("pypto_serving-") and "-py3-none-linux_" in distributions.wheel.name


def test_the_sdist_holds_stubs_and_what_builds_the_wheel(distributions: Any) -> None:
    with tarfile.open(distributions.sdist) as archive:
        held = {"/".join(PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    expected = (
        {f"protos/{name}" for name in STUBS}
        | SOURCES
        | PAGE
        | {"hatch_build.py", "scripts/generate_stubs.py", "constraints.txt", "LICENSE"}
    )
    assert not expected - held
    assert not [name for name in held if name.endswith(".so")]


def test_pip_alone_builds_a_wheel_for_any_machine(distributions: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(distributions.sdist)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    assert files(wheel) == {name for name in files(distributions.wheel) if "/prebuilt/" not in name}
