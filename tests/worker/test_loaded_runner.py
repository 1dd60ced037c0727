"""Loading a model into a runner: what goes wrong is one line."""

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness.checkpoints import TinyCheckpoint, make_checkpoint, write_json
from safetensors.torch import load_file

from kernels import ops
from kernels.scratch import MAX_DECODE_BYTES
from pypto_serving.process.start_up import StartUpError
from worker import loaded_runner
from worker.config import read_config
from worker.decode_graphs import GraphShape
from worker.kv_cache import CacheGroupSpec
from worker.loaded_runner import LoadedRunner, load_runner
from worker.models.model import Model
from worker.npu_software import NpuKernels
from worker.progress import ProgressCounter


def _load(model: Path, progress: ProgressCounter | None = None, flags: tuple[str, ...] = ()) -> LoadedRunner:
    config = read_config(["--model", str(model), "--device", "cpu", "--threads", "1", "--num-pages", "8", *flags])
    return load_runner(config, progress or ProgressCounter())


@pytest.mark.parametrize("content", [None, "{", '{"architectures": ["Unknown"]}'])
def test_wrong_model_is_refused_with_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StartUpError) as caught:
        _load(tmp_path)
    assert caught.value.exit_code == 2 and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [None, 1e200])
def test_model_that_does_not_fit_into_memory_is_refused_with_one_line(tmp_path: Path, factor: float | None) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    config = json.loads((directory / "config.json").read_text())
    scaling = factor and {"rope_type": "yarn", "factor": factor}
    write_json(directory / "config.json", config | {"max_position_embeddings": 10**15, "rope_scaling": scaling})
    with pytest.raises(StartUpError) as caught:
        _load(directory)
    message = str(caught.value)
    assert message.startswith(f"{directory}: the model cannot be loaded: ") and "\n" not in message
    assert caught.value.exit_code == 1


def test_length_of_sequences_bounds_what_is_made_for_positions(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    config = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", config | {"max_position_embeddings": 10**15})
    assert _load(directory, flags=("--max-model-len", "64")).limits.max_model_len == 64


def test_more_tokens_than_the_model_allows_are_refused(tiny_checkpoint: TinyCheckpoint) -> None:
    with pytest.raises(StartUpError, match=r"^--max-model-len 4097: .*config.json allows 4096: lower it, or leave it out$"):
        _load(tiny_checkpoint("llama"), flags=("--max-model-len", "4097"))


def test_a_cache_of_next_to_nothing_is_warned_of(tiny_checkpoint: TinyCheckpoint, caplog: pytest.LogCaptureFixture) -> None:
    _load(tiny_checkpoint("llama"), flags=("--page-tokens", "16"))
    assert "the KV cache holds 128 tokens, and a request cannot be longer; the model would take 4096" in caplog.messages
    caplog.clear()
    _load(tiny_checkpoint("llama"), flags=("--max-model-len", "128"))
    assert not caplog.messages


def test_lanes_that_do_not_fit_into_memory_are_refused_with_one_line(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("worker.loaded_runner.ModelRunner", fail)
    with pytest.raises(StartUpError, match=r"no memory for 7 lanes of .* tokens: lower --max-lanes") as caught:
        _load(tiny_checkpoint("llama"), flags=("--max-lanes", "7"))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, r": no \*\.safetensors files of a model"), (b"garbage", r"model\.safetensors: not a safetensors file")],
)
def test_weights_that_cannot_be_read_any_more_are_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    load = loaded_runner.load_model

    def load_and_lose(*arguments: Any) -> Model:
        model = load(*arguments)
        (directory / "model.safetensors").unlink()
        if content is not None:
            (directory / "model.safetensors").write_bytes(content)
        return model

    monkeypatch.setattr(loaded_runner, "load_model", load_and_lose)
    with pytest.raises(StartUpError, match=message):
        _load(directory)


@pytest.mark.parametrize(("kernel_set", "warnings"), [("torch", 1), ("cpp-1f0c", 0)])
def test_missing_kernels_are_told_once(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kernel_set: str, warnings: int
) -> None:
    monkeypatch.setattr("kernels.ops.kernel_set", lambda *_: kernel_set)
    with caplog.at_level(logging.WARNING):
        _load(tiny_checkpoint("llama"), flags=("--max-model-len", "64"))
    assert ["kernels.cpu.build" in str(vars(record)) for record in caplog.records if record.name == loaded_runner.__name__] == [
        True
    ] * warnings


@pytest.mark.parametrize(("kind", "dtype", "refused"), [("npu", "float32", True), ("npu", "bfloat16", False), ("cuda", "float32", False)])
def test_dtype_that_the_kernels_do_not_take_is_refused(kind: str, dtype: str, refused: bool) -> None:
    device = SimpleNamespace(kind=kind)
    with pytest.raises(StartUpError, match=r"^--dtype float32: the kernels of --device npu") if refused else nullcontext():
        loaded_runner._check_dtype(device, dtype)


@pytest.mark.parametrize("kind", ["npu", "cuda"])
def test_quantization_is_for_a_cpu(kind: str) -> None:
    with pytest.raises(StartUpError, match=f"^--quantize int8: quantized weights are for --device cpu; this is {kind}$"):
        loaded_runner._check_quantization(SimpleNamespace(kind=kind), "int8")


def test_quantized_models_are_loaded_by_the_flag(tiny_checkpoint: TinyCheckpoint) -> None:
    assert _load(tiny_checkpoint("llama"), flags=("--quantize", "int8")).numerics_id.startswith("bfloat16-int8/")


def test_model_that_cannot_be_captured_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model, device = SimpleNamespace(is_capturable=False), SimpleNamespace(kind="cuda")
    with caplog.at_level(logging.INFO):
        assert loaded_runner._plan_graphs(model, None, device) == ()
    assert [record.message for record in caplog.records if record.name == loaded_runner.__name__] == [
        "no graphs: on this device the experts cannot be captured"
    ]


def test_graphs_that_must_not_be_replayed_are_not_captured_and_why(caplog: pytest.LogCaptureFixture) -> None:
    model, device = SimpleNamespace(is_capturable=True), SimpleNamespace(kind="npu", replay_refusal="pypto 0.2.0 is too old")
    with caplog.at_level(logging.WARNING):
        assert loaded_runner._plan_graphs(model, None, device) == ()
    assert [vars(record)["reason"] for record in caplog.records] == ["pypto 0.2.0 is too old"]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_kernels_of_cann_are_for_an_npu(tiny_checkpoint: TinyCheckpoint, device: str) -> None:
    with pytest.raises(StartUpError, match=r"^--kernels cann: the kernels of CANN are for --device npu; this is (cpu|cuda)$"):
        _load(tiny_checkpoint("llama"), flags=("--device", device, "--kernels", "cann"))


@pytest.mark.parametrize(("kernels", "warnings"), [(NpuKernels.CANN, 1), (NpuKernels.PYPTO, 0)])
def test_kernels_that_promise_no_batch_invariance_are_told(kernels: NpuKernels, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded_runner._warn_of(kernels)
    assert [vars(record)["mend"] for record in caplog.records] == ["--kernels pypto"] * warnings


def test_graphs_take_their_page_tables_and_on_an_npu_the_scratch_of_attention() -> None:
    shapes = (GraphShape(8, 4096), GraphShape(256, 4096))
    specs = [CacheGroupSpec(name, (0,), page_tokens, 8, 128, torch.bfloat16) for name, page_tokens in (("full", 128), ("other", 100))]
    tables = 4 * (8 + 256) * (32 + 41)
    assert loaded_runner._graph_bytes(shapes, specs, "npu") == tables + MAX_DECODE_BYTES
    assert loaded_runner._graph_bytes(shapes, specs, "cuda") == tables
    assert loaded_runner._graph_bytes((), specs, "npu") == 0


def test_device_whose_kernels_do_not_compute_serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "linear", lambda x, weight, bias: x.new_zeros(x.shape[0], weight.shape[0]))
    options = SimpleNamespace(dtype=torch.bfloat16, page_tokens=16)
    with pytest.raises(StartUpError, match=r"^--device npu: its kernels do not work: linear is off by up to") as refused:
        loaded_runner._check_kernels(SimpleNamespace(kind="npu", torch_device=torch.device("cpu")), options)
    assert refused.value.exit_code == 1


def test_cpu_captures_nothing(tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.decode_graphs.DecodeGraphs.capture", lambda _: pytest.fail("captured"))
    _load(tiny_checkpoint("llama"))


@pytest.mark.parametrize(("kind", "slowest_seconds"), [("cpu", 20), ("npu", 4)])
def test_hst_06_the_slowest_unit_is_that_of_the_warm_up_without_loading_and_compiling(kind: str, slowest_seconds: int) -> None:
    seconds = [60]
    progress = ProgressCounter(lambda: seconds[0] * 1_000_000_000)

    def unit(duration: int) -> None:
        seconds[0] += duration
        progress()

    unit(50)  # a tensor was loaded
    runner = SimpleNamespace(warm_up=lambda share: unit(20 // share), rehearse=lambda: unit(4))
    loaded_runner._warm_up(runner, progress, Path("model"), num_layers=1, compiles=kind != "cpu")
    assert progress.slowest_unit_us == slowest_seconds * 1_000_000


def test_warm_up_counts_the_layers(tiny_checkpoint: TinyCheckpoint) -> None:
    progress = ProgressCounter()
    _load(tiny_checkpoint("llama"), progress)
    assert progress.count > 0 and progress.slowest_unit_us > 0


def test_tkz_07_file_that_is_none_of_the_weights_is_left_alone(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, "llama")
    tensors = dict.fromkeys(load_file(directory / "model.safetensors"), "model.safetensors")
    write_json(directory / "model.safetensors.index.json", {"weight_map": tensors})
    (directory / "optimizer.safetensors").write_bytes(b"garbage")
    (directory / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    assert _load(directory).limits.max_lanes > 0


@pytest.mark.parametrize(("launch_seconds", "kernels"), [(0.0, ["linear", "rms_norm"]), (1e9, [])])
def test_only_slow_calls_of_our_operators_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launch_seconds: float, kernels: list[str]
) -> None:
    monkeypatch.setattr(loaded_runner, "_LAUNCH_SECONDS", launch_seconds)
    with caplog.at_level(logging.INFO), loaded_runner.compile_log():
        ops.linear(torch.ones(2, 4), torch.ones(4, 4), None).relu()
        ops.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)
    # Threads that hash the weights of other tests may still log.
    assert [vars(record)["kernel"] for record in caplog.records if record.name == loaded_runner.__name__] == kernels
