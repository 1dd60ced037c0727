"""Nothing that comes with a model is ever run."""

import ast
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from harness.checkpoints import make_checkpoint

from control_plane.edge.model_directory import read_model
from pypto_serving.process.start_up import StartUpError
from worker.checkpoint.config_fields import ModelRefused
from worker.models import LoadOptions, load_model

ROOT = Path(__file__).parents[1]
PACKAGES = ("control_plane", "worker", "kernels", "clients", "pypto_serving")
CPU = torch.device("cpu")


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self._trace, "sprung")


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A good model, with pickled weights beside it and code of its own that its files name."""
    directory = make_checkpoint(tmp_path / "model", "llama")
    trace = tmp_path / "trace"
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trace)))
    for module in ("modeling_trap", "tokenization_trap"):
        (directory / f"{module}.py").write_text(f"import pathlib\npathlib.Path({str(trace)!r}).write_text('sprung')\nclass Trap: ...\n")
    name_code(directory / "config.json", {"AutoModelForCausalLM": "modeling_trap.Trap", "AutoConfig": "modeling_trap.Trap"})
    name_code(directory / "tokenizer_config.json", {"AutoTokenizer": ["tokenization_trap.Trap", None]})
    return directory


def name_code(path: Path, classes: dict[str, object]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": classes, "trust_remote_code": True}))


def test_code_and_pickles_beside_a_good_model_are_ignored(trapped: Path) -> None:
    read_model(trapped, None, {}, None)
    load_model(trapped, LoadOptions(torch.float32, CPU))
    assert not (trapped.parent / "trace").exists()
    assert not [name for name in sys.modules if name.endswith("_trap")]


def test_a_model_with_pickled_weights_only_is_refused_unread(trapped: Path) -> None:
    (trapped / "model.safetensors").unlink()
    words = r"only as pickle \(pytorch_model\.bin\), which is never loaded"
    with pytest.raises(StartUpError, match=words):
        read_model(trapped, None, {}, None)
    with pytest.raises(ModelRefused, match=words):
        load_model(trapped, LoadOptions(torch.float32, CPU))
    assert not (trapped.parent / "trace").exists()


def test_an_index_that_names_a_pickle_is_refused_unread(trapped: Path) -> None:
    (trapped / "model.safetensors").unlink()
    (trapped / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": "pytorch_model.bin"}}))
    with pytest.raises(ModelRefused, match=r"pytorch_model\.bin"):
        load_model(trapped, LoadOptions(torch.float32, CPU))
    assert not (trapped.parent / "trace").exists()


def test_an_architecture_that_only_its_own_code_knows_is_refused(trapped: Path) -> None:
    config = json.loads((trapped / "config.json").read_text())
    (trapped / "config.json").write_text(json.dumps({**config, "architectures": ["TrapForCausalLM"]}))
    with pytest.raises(ModelRefused, match="TrapForCausalLM"):
        load_model(trapped, LoadOptions(torch.float32, CPU))
    assert not (trapped.parent / "trace").exists()


def dangers(tree: ast.Module) -> Iterator[str]:
    """Imports and calls that could run what a file says."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in ("pickle", "dill", "marshal", "shelve"))
            case ast.ImportFrom(module="pickle" | "dill" | "marshal" | "shelve" as module):
                yield module
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                yield "torch.load"
            case ast.keyword(arg="trust_remote_code" | "allow_pickle" as name):
                yield name


def test_no_module_of_ours_could_run_what_a_file_says() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): list(dangers(ast.parse(path.read_text()))) for path in sources}
    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}
