"""Numerics under every set of instructions that can be forced on this machine: a part here, all of it by `make test-isa`."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from harness.checkpoints import TinyCheckpoint

from kernels import ops
from kernels.cpu import capabilities, extension

ROOT = Path(__file__).parents[2]
OPERATORS = ("linear", "products", "quantized", "rows", "moe", "attention")
KERNELS = [f"tests/kernels/test_{name}.py" for name in OPERATORS]
MODELS = ["tests/worker/test_token_equality.py", "tests/worker/models", "tests/worker/test_numerics.py"]
CORE = ["tests/kernels/test_linear.py", "-k", "large or place or gated or chunks or float64"]

ONEDNN = [{"ONEDNN_MAX_CPU_ISA": isa} for isa in ("AVX512_CORE_AMX", "AVX512_CORE_BF16", "AVX512_CORE", "AVX2", "SSE41")]
# Unlike oneDNN's, no limit: ATen takes what it is told for what the CPU has.
ATEN = [{"ATEN_CPU_CAPABILITY": level} for level in ("avx512", "avx2", "default") if level in (*extension.levels(), "default")]
LOOPS = {"PYPTO_LINEARS": "loops"}
LEVELS = [{"PYPTO_CPU_LEVEL": level} for level in extension.levels()[1:]]  # the best one is what all other tests run at
# As on another machine: everything is held down to what that one has.
MACHINES = [
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512", "PYPTO_CPU_LEVEL": "avx512"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "PYPTO_CPU_LEVEL": "avx2"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "PYPTO_CPU_LEVEL": "sse4"},
]

pytestmark = pytest.mark.skipif(ops.kernel_set() == "torch", reason="the C++ kernels are not built: python -m kernels.cpu.build")


def name(setting: dict[str, str]) -> str:
    return "-".join(setting.values())


def run(setting: dict[str, str], *command: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}:{ROOT / 'tests'}", **setting}
    result = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{setting} {command}\n{result.stdout[-4000:]}\n{result.stderr[-2000:]}"
    return result.stdout


def run_tests(setting: dict[str, str], *arguments: str) -> None:
    run(setting, "-m", "pytest", "-q", "-m", "not kernels and not isa", "-p", "no:cacheprovider", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [ONEDNN[2], ONEDNN[3], {**ATEN[-1], **LOOPS}], ids=name)
def test_products_are_batch_invariant(setting: dict[str, str]) -> None:
    run_tests(setting, *CORE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hst_05_equal_numerics_ids_have_equal_bits(tiny_checkpoint: TinyCheckpoint) -> None:
    digests = defaultdict(set)
    for setting in ({}, {"DNNL_MAX_CPU_ISA": "SSE41"}, *ONEDNN, *ATEN, LOOPS):
        for numerics_id, digest in json.loads(run(setting, "tests/isa/logits.py", str(tiny_checkpoint("llama")))):
            digests[numerics_id].add(digest)
    assert not {numerics_id: bits for numerics_id, bits in digests.items() if len(bits) > 1}


@pytest.mark.isa
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setting", [*ONEDNN, *ATEN, LOOPS], ids=name)
def test_everything_under_a_limit_of_a_library(setting: dict[str, str]) -> None:
    if setting == ONEDNN[0] and not capabilities.of_this_cpu().get("amx_tile"):
        pytest.skip("without AMX this is no limit")
    run_tests(setting, *KERNELS, *MODELS)


@pytest.mark.isa
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("setting", [*LEVELS, *MACHINES], ids=name)
def test_everything_at_a_level_of_our_own_code(setting: dict[str, str]) -> None:
    if setting["PYPTO_CPU_LEVEL"] not in extension.levels():
        pytest.skip(f"this CPU runs {', '.join(extension.levels())}")
    run(setting, "-m", "kernels.cpu.build")
    run_tests(setting, *KERNELS, *MODELS)
