"""A model, its KV cache and its runner, ready to execute steps."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import ops
from kernels.quantized import Quantizer
from kernels.scratch import MAX_DECODE_BYTES
from kernels.self_check import check_device
from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.fingerprint import fingerprint_model, weight_files
from pypto_serving.wire.model_directory import name_model
from worker.checkpoint.config_fields import ConfigFields, ModelRefused, read_json_object
from worker.checkpoint.weights_hash import WeightsHash
from worker.config import WorkerConfig
from worker.decode_graphs import DecodeGraphs, GraphShape, graph_shapes
from worker.device import Device, first_line, select_device
from worker.kv_cache import CacheGroupSpec, KVCache, PoolDemand, size_pool
from worker.models import LoadOptions, Model, load_model
from worker.npu_software import NpuKernels
from worker.null_runner import NullRunner
from worker.progress import ProgressCounter
from worker.runner import ModelRunner
from worker.step import CacheGroup, RunnerLimits, WorkerDescription
from worker.step_time import StepTime

_log = logging.getLogger(__name__)

_MAX_HASH_THREADS = 4  # 6 GiB/s: no disk that weights lie on is much faster
_WARM_UP_STEPS = 2  # a prefill and a decode
# Where nothing is compiled for a shape a shorter prefill shows as much, and the worker serves sooner.
_SHARE_WITHOUT_COMPILING = 4
_LAUNCH_SECONDS = 0.2  # no launch takes so long, and hardly a compilation less
_NULL_PAGE_TOKENS = 16
_FEW_TOKENS = 1024  # of a KV cache
_NO_BYTES_ARE_TAKEN = 1 << 62  # memory for pages that are not there
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner that has produced a token, and what others need to know about it."""

    runner: ModelRunner | NullRunner
    limits: RunnerLimits
    architecture: str
    model_fingerprint: str
    numerics_id: str
    cache_groups: tuple[CacheGroup, ...]
    kv_cache_bytes: int
    weights_digest: Callable[[], str] = str  # empty until it is known
    model_name: str = "a model"  # for people

    def describe(self, incarnation: str, max_steps_in_flight: int, lease_seconds: float) -> WorkerDescription:
        """What a handshake says about a worker with this runner."""
        return WorkerDescription(
            incarnation=incarnation,
            model_fingerprint=self.model_fingerprint,
            numerics_id=self.numerics_id,
            vocab_size=self.limits.vocab_size,
            max_model_len=self.limits.max_model_len,
            max_lanes=self.limits.max_lanes,
            max_step_tokens=self.limits.max_step_tokens,
            max_steps_in_flight=max_steps_in_flight,
            lease_seconds=lease_seconds,
            num_partitions=self.limits.num_partitions,
            cache_groups=self.cache_groups,
            weights_digest=self.weights_digest,
            model_name=self.model_name,
        )


def load_runner(config: WorkerConfig, progress: ProgressCounter) -> LoadedRunner:
    """Load, allocate and warm up, on the thread that will own the device; raises StartUpError with one line when that cannot be."""
    if config.device == "null":
        return _load_null(config, progress)
    device = select_device(config.device, config.device_index, config.threads, npu_kernels=config.kernels)
    _check_dtype(device, config.dtype)
    _check_quantization(device, config.quantize)
    _check_npu_kernels(device, config.kernels)
    with compile_log() if device.kind == "npu" else nullcontext():
        return _load(config, device, progress)


class _CompileLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that is called, and how long the call takes on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        begin = time.monotonic()
        result = func(*args, **(kwargs or {}))
        seconds = time.monotonic() - begin
        if seconds >= _LAUNCH_SECONDS and func.namespace == ops.NAMESPACE:
            _log.info("compiled", extra={"kernel": func.name().partition("::")[2], "seconds": round(seconds, 1)})
        return result


@contextmanager
def compile_log() -> Iterator[None]:
    """Within it, one line for each call of an operator that compiled a kernel: a start of minutes is not to look like one that hangs."""
    with _CompileLog():  # type: ignore[no-untyped-call]
        yield


def _load(config: WorkerConfig, device: Device, progress: ProgressCounter) -> LoadedRunner:
    page_tokens = config.page_tokens or device.page_tokens
    quantizer = Quantizer.parse(config.quantize) if config.quantize else None
    options = LoadOptions(
        _DTYPES[config.dtype],
        device.torch_device,
        page_tokens,
        config.max_model_len,
        progress,
        progress.expect_tensors,
        quantizer,
        config.kernels if device.kind == "npu" else None,
    )
    if device.kind == "cpu" and ops.kernel_set() == "torch":
        message = "no C++ kernels for this CPU and torch: slower ones of torch serve, and tokens may depend on the other rows of a batch"
        _log.warning(message, extra={"build": "python -m kernels.cpu.build"})
    _warn_of(config.kernels)
    if device.kind != "cpu":
        _check_kernels(device, options)
    model = _load_model(config.model, options)
    limits = RunnerLimits(
        vocab_size=model.description.vocab_size,
        max_model_len=model.description.max_model_len,
        max_lanes=config.max_lanes,
        max_step_tokens=config.max_step_tokens,
    )
    shapes = () if config.eager else _plan_graphs(model, limits, device)
    graph_bytes = _graph_bytes(shapes, model.cache_groups, device.kind)
    if shapes:
        _log.info("graphs take", extra={"graphs": len(shapes), "bytes_at_most": graph_bytes})
    cache = _allocate_cache(model, device, limits, config.num_pages, graph_bytes)
    _warn_of_few_pages(cache.groups, limits.max_model_len)
    graphs = DecodeGraphs(model.forward, cache, shapes, device.new_capture()) if shapes else None
    runner = _make_runner(model, cache, limits, graphs, device)
    num_layers = sum(len(group.layers) for group in model.cache_groups)
    _warm_up(runner, progress, config.model, num_layers, compiles=device.kind != "cpu")
    fingerprint, files = _identify(config.model)
    weights_hash = WeightsHash(files, min(_MAX_HASH_THREADS, max(1, config.threads // 2)))
    return LoadedRunner(
        runner=runner,
        limits=limits,
        architecture=model.description.architecture,
        model_fingerprint=fingerprint,
        numerics_id=model.numerics_id,
        cache_groups=cache.groups,
        kv_cache_bytes=sum(tensor.nbytes for tensor in (*cache.keys, *cache.values)),
        weights_digest=lambda: weights_hash.digest,
        model_name=name_model(config.model),
    )


def _load_null(config: WorkerConfig, progress: ProgressCounter) -> LoadedRunner:
    """A runner that computes nothing; of the model it reads sizes and fingerprint."""
    fields = ConfigFields(config.model / "config.json", read_json_object(config.model / "config.json"))
    max_model_len = fields.integer("max_position_embeddings", config.max_model_len)
    if config.max_model_len is not None and config.max_model_len > max_model_len:
        raise ModelRefused(f"--max-model-len {config.max_model_len}: {fields.path} allows {max_model_len}: lower it, or leave it out")
    limits = RunnerLimits(
        vocab_size=fields.integer("vocab_size"),
        max_model_len=config.max_model_len or max_model_len,
        max_lanes=config.max_lanes,
        max_step_tokens=config.max_step_tokens,
    )
    spec = CacheGroupSpec("full", (0,), config.page_tokens or _NULL_PAGE_TOKENS, num_kv_heads=1, head_dim=1, dtype=torch.bfloat16)
    demand = PoolDemand(limits.max_lanes, limits.max_model_len, limits.max_step_tokens)
    groups = tuple(spec.sized(pages) for pages in size_pool([spec], demand, _NO_BYTES_ARE_TAKEN, config.num_pages))
    _warn_of_few_pages(groups, limits.max_model_len)
    fingerprint, _ = _identify(config.model)
    timing = StepTime(config.step_ms / 1e3, config.token_us / 1e6, config.step_table)
    try:
        runner = NullRunner(limits, groups, timing, progress)
    except (MemoryError, ValueError):
        raise _no_memory_for_lanes(limits) from None
    _warm_up(runner, progress, config.model, num_layers=1, compiles=False)
    _log.warning("--device null computes nothing: its tokens are made up, to measure control planes")
    return LoadedRunner(
        runner=runner,
        limits=limits,
        architecture="null",
        model_fingerprint=fingerprint,
        numerics_id="null",
        cache_groups=groups,
        kv_cache_bytes=0,
        model_name=name_model(config.model),
    )


def _warn_of_few_pages(groups: Sequence[CacheGroup], max_model_len: int) -> None:
    """A worker that holds next to nothing serves, and refuses almost everything."""
    tokens = min((group.page_tokens * group.num_pages for group in groups if group.window_tokens is None), default=max_model_len)
    if tokens < min(max_model_len, _FEW_TOKENS):
        message = f"the KV cache holds {tokens} tokens, and a request cannot be longer; the model would take {max_model_len}"
        _log.warning(message, extra={"mend": "a larger --num-pages, or more free memory"})


def _check_dtype(device: Device, dtype: str) -> None:
    if device.kind == "npu" and dtype != "bfloat16":
        raise StartUpError(f"--dtype {dtype}: the kernels of --device npu take bfloat16 only")


def _warn_of(kernels: NpuKernels) -> None:
    if kernels is NpuKernels.CANN:
        message = "the kernels of CANN promise no batch invariance: tokens may depend on the other rows of a batch"
        _log.warning(message, extra={"mend": "--kernels pypto"})


def _check_kernels(device: Device, options: LoadOptions) -> None:
    try:
        check_device(device.torch_device, options.dtype, options.page_tokens)
    except RuntimeError as error:  # compilers and drivers raise it too
        raise StartUpError(f"--device {device.kind}: its kernels do not work: {first_line(error)}", exit_code=1) from error


def _check_quantization(device: Device, quantize: str | None) -> None:
    if device.kind != "cpu" and quantize:
        raise StartUpError(f"--quantize {quantize}: quantized weights are for --device cpu; this is {device.kind}")


def _check_npu_kernels(device: Device, kernels: NpuKernels) -> None:
    if device.kind != "npu" and kernels is NpuKernels.CANN:
        raise StartUpError(f"--kernels {kernels}: the kernels of CANN are for --device npu; this is {device.kind}")


def _load_model(directory: Path, options: LoadOptions) -> Model:
    try:
        return load_model(directory, options)
    except (RuntimeError, MemoryError, OverflowError) as error:  # no memory, for the most part
        raise StartUpError(f"{directory}: the model cannot be loaded: {first_line(error)}", exit_code=1) from error


def _identify(directory: Path) -> tuple[str, list[Path]]:
    """The fingerprint of a model and the files that hold its weights."""
    try:
        return fingerprint_model(directory), weight_files(directory)
    except OSError as error:
        raise ModelRefused(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:  # a file that no tensor is read from
        raise ModelRefused(str(error)) from error


def _allocate_cache(model: Model, device: Device, limits: RunnerLimits, num_pages: int | None, reserved_bytes: int) -> KVCache:
    demand = PoolDemand(limits.max_lanes, limits.max_model_len, limits.max_step_tokens, limits.num_partitions)
    pages = size_pool(model.cache_groups, demand, device.free_bytes() - reserved_bytes, num_pages)
    try:
        return model.allocate_cache(pages, limits.num_partitions)
    except (RuntimeError, MemoryError):
        num_bytes = sum(count * group.page_bytes for count, group in zip(pages, model.cache_groups, strict=True))
        raise StartUpError(
            f"the KV cache does not fit: {max(pages):,} pages take {num_bytes:,} bytes; lower --num-pages", exit_code=1
        ) from None


def _plan_graphs(model: Model, limits: RunnerLimits, device: Device) -> tuple[GraphShape, ...]:
    """The shapes that the warm-up captures. A CPU gains nothing from graphs, as it launches nothing."""
    if device.kind == "cpu":
        return ()
    if not model.is_capturable:
        _log.info("no graphs: on this device the experts cannot be captured", extra={"device": device.kind})
        return ()
    if reason := device.replay_refusal:
        _log.warning("no graphs: every kernel is launched by itself", extra={"reason": reason})
        return ()
    # PyPTO's attention; it takes neither a window nor pages of another size.
    groups = model.cache_groups
    by_length = device.kind == "npu" and all(not group.window_tokens and group.page_tokens == device.page_tokens for group in groups)
    return graph_shapes(limits, by_length)


def _graph_bytes(shapes: Sequence[GraphShape], groups: Sequence[CacheGroupSpec], device_kind: str) -> int:
    """What captured steps keep beside the model and the KV cache: their page tables, and on an NPU the scratch of attention.

    Graphs share their memory, so that the scratch is there once; the activations of a few hundred rows are not counted.
    """
    if not shapes:
        return 0
    tables = sum(4 * shape.rows * -(-shape.max_tokens // group.page_tokens) for shape in shapes for group in groups)
    return tables + (MAX_DECODE_BYTES if device_kind == "npu" else 0)


def _make_runner(model: Model, cache: KVCache, limits: RunnerLimits, graphs: DecodeGraphs | None, device: Device) -> ModelRunner:
    try:
        return ModelRunner(model, cache, limits, graphs, device.copy_to_host)
    except MemoryError:
        raise _no_memory_for_lanes(limits) from None


def _no_memory_for_lanes(limits: RunnerLimits) -> StartUpError:
    lanes = f"{limits.max_lanes:,} lanes of {limits.max_model_len:,} tokens"
    return StartUpError(f"no memory for {lanes}: lower --max-lanes or --max-model-len", exit_code=1)


def _warm_up(runner: ModelRunner | NullRunner, progress: ProgressCounter, directory: Path, num_layers: int, compiles: bool) -> None:
    progress.forget_slowest()  # what is slow about loading says nothing about layers
    share = 1 if compiles else _SHARE_WITHOUT_COMPILING
    num_units = _WARM_UP_STEPS * num_layers
    progress.enter("compiling" if compiles else "warming up", 0 if compiles else num_units)  # it captures, too, and runs steps for that
    try:
        runner.warm_up(share)
        if compiles:  # what is slow about compiling neither: measure again
            progress.forget_slowest()
            progress.enter("warming up", num_units)
            runner.rehearse()
    except (RuntimeError, MemoryError) as error:
        raise StartUpError(f"{directory}: the model does not run: {first_line(error)}", exit_code=1) from error
    progress.end_warm_up(share)
