"""Directories that hold no model, or not all of one, and what both planes say of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.checkpoints import TinyCheckpoint

from control_plane.edge.model_files import read_identity
from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.model_directory import check_directory, describe_difference, name_model
from worker.checkpoint.checkpoint import Checkpoint

_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture
def model(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "model"))


def refusals(directory: Path) -> list[str]:
    """What the control plane and a worker say."""
    readers: tuple[Callable[[Path], object], ...] = (lambda path: read_identity(path, None), Checkpoint)
    said = []
    for read in readers:
        with pytest.raises(StartUpError) as caught:
            read(directory)
        said.append(str(caught.value))
    return said


def test_the_name_of_a_model_of_a_hub_is_told_from_a_directory() -> None:
    with pytest.raises(ValueError, match="nothing is fetched from a model hub: download the model"):
        check_directory(Path("Qwen/Qwen3-0.6B"))


def test_a_directory_that_is_not_there_is_just_that(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model: no such directory$"):
        check_directory(tmp_path / "model")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pointer_of_git_lfs_is_named(model: Path, name: str) -> None:
    (model / name).write_bytes(_POINTER)
    for said in refusals(model):
        assert f"{name}: only a pointer of Git LFS" in said and "git lfs pull" in said


def test_a_file_that_was_copied_in_part_is_refused_by_both(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert all("truncated" in said for said in refusals(model))


def test_weights_as_pickle_only_are_refused_by_both_in_the_same_words(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    first, second = refusals(model)
    assert first == second and "only as pickle (pytorch_model.bin)" in first


def test_gguf_is_refused_by_both_in_the_same_words(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.gguf")
    first, second = refusals(model)
    assert first == second and "pypto-serving convert" in first


def test_a_model_is_named_by_what_tells_it_apart(model: Path) -> None:
    assert name_model(model) == f"{model} (LlamaForCausalLM, vocab_size 1024)"
    (model / "config.json").unlink()
    assert name_model(model) == str(model)
    assert len(name_model(model / ("x" * 500))) == 256


def test_a_difference_says_whether_it_is_of_models_or_of_files() -> None:
    said = describe_difference("the control plane", "/a (LlamaForCausalLM, vocab_size 9)", "this worker", "/b")
    assert said.startswith("the control plane has /a (LlamaForCausalLM, vocab_size 9), this worker has /b: another model; ")
    assert "files of another content under the same name" in describe_difference("it", "/a", "we", "/a")
