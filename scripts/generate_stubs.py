"""Generates the gRPC stubs of protos/ into a folder: messages, services, and the types of both."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).resolve().parent.parent / "protos"


def generate(folder: Path) -> None:
    """Write the stubs below `folder`, in the folders of their packages."""
    folder.mkdir(parents=True, exist_ok=True)
    # Isolated builds have the plugins on PATH, virtual environments that are not active beside their Python.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    plugins = [f"--plugin={name}={shutil.which(name, path=path)}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    outputs = [f"--python_out={folder}", f"--grpc_python_out={folder}", f"--mypy_out=quiet:{folder}", f"--mypy_grpc_out=quiet:{folder}"]
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *plugins, *outputs, *sources], cwd=PROTOS, check=True)


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        generate(parser.parse_args().folder.absolute())
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
