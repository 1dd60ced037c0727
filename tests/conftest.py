"""Fixtures that more than one part of the tests uses."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before torch is imported: on a busy machine threads that spin for others make every operator wait for a time slice.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Before any test imports Triton's kernels, which read it as they are defined: on a CPU nobody compiles them.
if "TEST_DEVICE" not in os.environ:
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("default")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Factory `tiny_checkpoint(arch, dtype="float32", **config)`: the directory of a tiny model, made once per session.

    Families: llama, qwen2, qwen3, qwen3_moe. Other tests use the same files: copy the directory before you change it.
    """
    made: dict[str, Path] = {}

    def checkpoint(arch: str, dtype: str = "float32", **config: Any) -> Path:
        from harness.checkpoints import make_checkpoint  # imports torch, which most tests do not need

        key = repr((arch, dtype, sorted(config.items())))
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp("tiny") / arch, arch, dtype, **config)
        return made[key]

    return checkpoint


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Directory of the real demo model, SmolLM2-135M-Instruct in bfloat16, converted at first use. For tests marked slow."""
    from scripts.prepare_demo_model import prepare_demo_model

    return prepare_demo_model()
