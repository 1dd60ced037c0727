"""Generated stubs fit the runtimes that our packaging lets in."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

_ROOT = Path(__file__).parents[2]
_PROTOS = _ROOT / "protos"


def _generated(pattern: str) -> set[Version]:
    """Versions that the stubs name."""
    texts = [path.read_text() for path in _PROTOS.rglob("*_pb2*.py")]
    return {Version(found) for text in texts for found in re.findall(pattern, text)}


def _allowed(name: str) -> Requirement:
    dependencies = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(requirement for requirement in map(Requirement, dependencies) if requirement.name == name)


def test_rpc_06_the_lowest_protobuf_that_is_allowed_can_load_them() -> None:
    (generated,) = _generated(r"# Protobuf Python Version: (\S+)")
    lowest = min(Version(bound.version) for bound in _allowed("protobuf").specifier if bound.operator == ">=")
    highest = next(Version(bound.version) for bound in _allowed("protobuf").specifier if bound.operator == "<")
    # Stubs work with their own version and later ones, up to the end of the major version after it.
    assert generated <= lowest and highest.major <= generated.major + 1


def test_rpc_06_the_generator_brings_a_grpc_that_can_load_them() -> None:
    (generated,) = _generated(r"GRPC_GENERATED_VERSION = '(\S+)'")
    of_generator = next(
        requirement for requirement in map(Requirement, importlib.metadata.requires("grpcio-tools") or []) if requirement.name == "grpcio"
    )
    assert generated == Version(importlib.metadata.version("grpcio-tools"))
    assert min(Version(bound.version) for bound in of_generator.specifier if bound.operator == ">=") >= generated
    assert Version(importlib.metadata.version("grpcio")) in _allowed("grpcio").specifier
    assert min(Version(bound.version) for bound in _allowed("grpcio").specifier if bound.operator == ">=") >= generated


@pytest.mark.parametrize("package", ["inference", "worker", "admin", "scheduler", "profile"])
def test_rpc_06_generating_again_changes_nothing(package: str, tmp_path: Path) -> None:
    source = f"pypto_serving/{package}/v1/{package}.proto"
    tool = [sys.executable, "-m", "grpc_tools.protoc", f"-I{_PROTOS}", f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    subprocess.run([*tool, source], check=True, cwd=_PROTOS)
    for path in tmp_path.rglob("*.py"):
        assert path.read_text() == (_PROTOS / path.relative_to(tmp_path)).read_text()


@pytest.mark.parametrize("package", ["inference", "worker", "admin", "scheduler", "profile"])
def test_protos_name_the_packages_of_other_languages(package: str) -> None:
    options = importlib.import_module(f"pypto_serving.{package}.v1.{package}_pb2").DESCRIPTOR.GetOptions()
    assert options.go_package == f"pypto_serving/{package}/v1;{package}v1"
    assert (options.java_package, options.java_multiple_files) == (f"pypto.serving.{package}.v1", True)
    assert options.csharp_namespace == f"PyptoServing.{package.title()}.V1"
