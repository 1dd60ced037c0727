"""The two sets of kernels of an NPU, call by call: how long each takes, and how far apart their results are."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import ops
from kernels.cann import registration as cann_registration
from kernels.reference import rows

KernelSet = Mapping[str, Callable[..., Any]]
_REPEATS = 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model whose operators are called."""

    hidden: int = 1024
    inner: int = 3072
    heads: int = 16
    kv_heads: int = 8
    width: int = 128
    vocabulary: int = 151_936
    experts: int = 128
    chosen: int = 8  # experts of a row
    expert_inner: int = 768
    page_tokens: int = 128
    rows: tuple[int, int] = (8, 512)  # of a decode step and of a chunk
    context: int = 2048
    most_kept: int = 128  # tokens, by the sampler


#: So small that a CPU plays the device; with heads that CANN's attention takes.
TINY = Sizes(64, 96, 4, 2, 64, 256, 8, 2, 32, 16, (2, 5), 40, 16)


@dataclass(frozen=True, slots=True)
class Case:
    """A call of an operator."""

    operator: str
    shape: str
    arguments: tuple[Any, ...]
    for_pypto: tuple[Any, ...] | None = None  # in the place of these, where models lay something out for it in loading


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of a call by both sets: microseconds, or the first line of what it raised."""

    case: Case
    pypto: float | str
    cann: float | str
    difference: float  # the largest of any number that a call returns or writes, infinity for other indices; NaN where one failed
    greatest: float = 1.0  # of the numbers themselves

    @property
    def is_close(self) -> bool:
        """Whether bf16, sums in another order, and weights of experts that CANN rounds explain the difference."""
        return self.difference <= 2**-5 * max(self.greatest, 1.0)


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Every operator of a model and the sampler, with the rows of a decode step and of a chunk of a prompt; arguments are on the device."""
    numbers = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=numbers).to(device, dtype)

    hidden, heads, kv_heads, width = sizes.hidden, sizes.heads, sizes.kv_heads, sizes.width
    norm, qkv, gate_up = random(hidden), random((heads + 2 * kv_heads) * width, hidden) / 32, random(2 * sizes.inner, hidden) / 32
    table = random(sizes.vocabulary, hidden)
    angles = torch.rand(sizes.context, width // 2, generator=numbers).to(device)
    for num_rows in sizes.rows:
        x = random(num_rows, hidden)
        label = f"{num_rows} x {hidden}"
        yield Case("rms_norm", label, (x, norm, 1e-6))
        yield Case("add_rms_norm", label, (x, random(num_rows, hidden), norm, 1e-6))
        yield Case("swiglu", f"{num_rows} x {2 * sizes.inner}", (random(num_rows, 2 * sizes.inner),))
        yield Case("linear", f"{label} x {len(qkv)}", (x, qkv, None))
        yield Case("linear", f"{label} x {len(gate_up)}", (x, gate_up, None))
        yield Case("embedding", label, (torch.arange(num_rows, dtype=torch.int32, device=device), table))
        # No two alike, also in bf16: of ties CANN promises nothing.
        orders = [torch.randperm(sizes.experts, generator=numbers) for _ in range(num_rows)]
        logits = (torch.stack(orders) / 16).to(device, torch.bfloat16)
        yield Case("moe_route", f"{num_rows} of {sizes.experts}", (logits, sizes.chosen, True, "softmax"))
        experts = random(sizes.experts, 2 * sizes.expert_inner, hidden) / 32, random(sizes.experts, hidden, sizes.expert_inner) / 32
        weights, ids = logits.float().softmax(-1).topk(sizes.chosen)
        yield Case("moe_experts", f"{label}, {sizes.chosen} of {sizes.experts}", (x, weights, ids.int(), *experts))
    logits = random(sizes.rows[0], sizes.vocabulary, dtype=torch.float32)
    yield Case("argmax", f"{sizes.rows[0]} x {sizes.vocabulary}", (logits,))
    yield Case("top_k", f"{sizes.most_kept} of {sizes.rows[0]} x {sizes.vocabulary}", (logits, sizes.most_kept))
    for sequences, chunk in ((sizes.rows[0], 1), (1, sizes.rows[1])):
        yield from _attention_cases(sizes, random, angles, sequences, chunk)


def _attention_cases(sizes: Sizes, random: Callable[..., Tensor], angles: Tensor, sequences: int, chunk: int) -> Iterator[Case]:
    """Sequences of the whole context, of which the last tokens run."""
    device, pages = angles.device, -(-sizes.context // sizes.page_tokens)
    num_rows, heads, kv_heads, width = sequences * chunk, sizes.heads, sizes.kv_heads, sizes.width
    k_cache, v_cache = (random(sequences * pages, sizes.page_tokens, kv_heads, width) for _ in range(2))
    table = torch.arange(sequences * pages, dtype=torch.int32).view(sequences, pages)
    positions = torch.arange(sizes.context - chunk, sizes.context, dtype=torch.int32).repeat(sequences)
    slots = torch.arange(sequences).repeat_interleave(chunk) * pages * sizes.page_tokens + positions
    starts = torch.arange(sequences + 1, dtype=torch.int32) * chunk
    table, positions, slots, starts = (tensor.to(device) for tensor in (table, positions, slots.int(), starts))
    label = f"{chunk} of {sizes.context}, {sequences} sequences, {heads}/{kv_heads} heads of {width}"
    qkv = random(num_rows, heads + 2 * kv_heads, width)
    placed = positions, angles.cos(), angles.sin(), k_cache, v_cache, slots
    yield Case("qk_rope_kv_write", label, (qkv, None, None, 0.0, *placed))
    norms = random(width), random(width)
    laid_out = qkv, *ops.lay_out_head_norms(*norms, heads, kv_heads), 1e-6, *placed
    yield Case("qk_rope_kv_write", f"{label}, with norms", (qkv, *norms, 1e-6, *placed), laid_out)
    q = random(num_rows, heads, width)
    yield Case("paged_attention", label, (q, k_cache, v_cache, table, starts, positions, width**-0.5, 0))


def in_parts(rms_norm: Callable[..., Any], rotary: Callable[..., Any], write_kv: Callable[..., Any]) -> Callable[..., Tensor]:
    """What computes ops.qk_rope_kv_write, norms [D] given as they are, by operators of a set one after the other."""

    def qk_rope_kv_write(*args: Any) -> Tensor:
        qkv, q_norm, k_norm, eps, positions, cos, sin, k_cache, v_cache, slots = args
        num_kv_heads = k_cache.shape[2]
        query, key, value = qkv.split([qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], 1)
        if q_norm is not None:
            query, key = rms_norm(query, q_norm, eps), rms_norm(key, k_norm, eps)
        query, key = rotary(query, key, positions, cos, sin)
        write_kv(key, value, k_cache, v_cache, slots)
        return query

    return qk_rope_kv_write


def cann_set() -> KernelSet:
    """What `--kernels cann` computes each operator with."""
    operators = cann_registration.operators()

    return {
        **operators,
        "qk_rope_kv_write": in_parts(operators["rms_norm"], operators["rotary"], operators["write_kv"]),
        "linear": rows.linear,
        "embedding": rows.embedding,
        "argmax": rows.argmax,
        "top_k": rows.top_k,
    }


def compare(case: Case, pypto: KernelSet, cann: KernelSet, synchronize: Callable[[], None]) -> Comparison:
    """Call both; what one raises does not keep the other from being called."""
    pypto_us, ours = _run(pypto[case.operator], case.for_pypto or case.arguments, synchronize)
    cann_us, theirs = _run(cann[case.operator], case.arguments, synchronize)
    if not ours or not theirs:
        return Comparison(case, pypto_us, cann_us, float("nan"))
    greatest = _greatest([result for result in ours if result.is_floating_point()])
    return Comparison(case, pypto_us, cann_us, _difference(ours, theirs), greatest)


def _run(operator: Callable[..., Any], arguments: Sequence[Any], synchronize: Callable[[], None]) -> tuple[float | str, list[Tensor]]:
    """Mean microseconds of calls in a row, after the first, and what the first returned and wrote."""
    mine = [value.clone() if isinstance(value, Tensor) else value for value in arguments]
    try:
        returned = operator(*mine)
        synchronize()
        left = [
            value for before, value in zip(arguments, mine, strict=True) if isinstance(value, Tensor) and not torch.equal(before, value)
        ]
        results = [*(returned if isinstance(returned, tuple) else () if returned is None else (returned,)), *left]
        results = [result.cpu().double() if result.is_floating_point() else result.cpu().long() for result in results]
        begin = time.perf_counter()
        for _ in range(_REPEATS):
            operator(*mine)
        synchronize()
    except Exception as error:  # whatever a device's libraries raise belongs into the table
        return str(error).partition("\n")[0] or type(error).__name__, []
    return (time.perf_counter() - begin) / _REPEATS * 1e6, results


def _difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    if [result.shape for result in ours] != [result.shape for result in theirs]:
        return float("inf")
    indices = [(mine, other) for mine, other in zip(ours, theirs, strict=True) if not mine.is_floating_point()]
    if not all(torch.equal(mine, other) for mine, other in indices):
        return float("inf")
    return _greatest([mine - other for mine, other in zip(ours, theirs, strict=True)])


def _greatest(results: Sequence[Tensor]) -> float:
    """Of all numbers; NaN if one is, which Python's own max would pass over."""
    return float(torch.stack([result.abs().max().double() for result in results]).max()) if results else 1.0


def format_table(comparisons: Sequence[Comparison]) -> str:
    """One line each, as Markdown."""
    lines = ["| operator | shape | pypto us | cann us | largest difference |", "|---|---|---|---|---|"]
    for row in comparisons:
        pypto, cann = (told if isinstance(told, str) else f"{told:,.0f}" for told in (row.pypto, row.cann))
        lines.append(f"| {row.case.operator} | {row.case.shape} | {pypto} | {cann} | {row.difference:.3g} |")
    return "\n".join(lines)
