"""The implementations that every operator test runs over, and paged sequences to attend to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from kernels import ops
from kernels.accelerator import attention as accelerator_attention
from kernels.accelerator import rows as accelerator_rows
from kernels.cpu import products
from kernels.reference import attention, moe, rows

REFERENCE = SimpleNamespace(
    rms_norm=rows.rms_norm,
    add_rms_norm=rows.add_rms_norm,
    finite_rows=rows.finite_rows,
    rotary=rows.rotary,
    write_kv=rows.write_kv,
    paged_attention=attention.paged_attention,
    swiglu=rows.swiglu,
    moe_route=moe.moe_route,
)
_OF_ACCELERATORS_ALONE = {
    "rms_norm": accelerator_rows.rms_norm,
    "add_rms_norm": accelerator_rows.add_rms_norm,
    "paged_attention": accelerator_attention.paged_attention,
}
ACCELERATOR = SimpleNamespace(**vars(REFERENCE) | _OF_ACCELERATORS_ALONE)


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """Sequences of given lengths in paged caches, with their keys and values also at hand in order."""

    k_cache: Tensor
    v_cache: Tensor
    page_table: Tensor
    keys: list[Tensor]  # [L, Hk, D] per sequence
    values: list[Tensor]
    queries: list[Tensor]  # [L, Hq, D]

    def attend(self, operators: SimpleNamespace, chunks: Sequence[tuple[int, int, int]], window: int = 0, padding: int = 0) -> Tensor:
        """Runs rows first .. end of sequences, given as (sequence, first, end), as one batch."""
        q = torch.cat([self.queries[s][a:b] for s, a, b in chunks])
        q = torch.nn.functional.pad(q, (0, 0, 0, 0, 0, padding))
        positions = torch.cat([torch.arange(a, b) for _, a, b in chunks] + [torch.zeros(padding, dtype=torch.int64)])
        starts = torch.tensor([0] + [b - a for _, a, b in chunks]).cumsum(0).int()
        table = self.page_table[[s for s, _, _ in chunks]]
        return operators.paged_attention(q, self.k_cache, self.v_cache, table, starts, positions, q.shape[2] ** -0.5, window)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small operators on two threads mostly wait for each other; tests of threads set their own number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["reference", "accelerator", "cpu"])
def operators(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Implementations of the operators: torch (those for accelerators run anywhere), or what a CPU tensor is dispatched to."""
    if request.param != "cpu":
        return ACCELERATOR if request.param == "accelerator" else REFERENCE
    if ops.kernel_set() == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")
    return ops


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def random(dtype: torch.dtype) -> Callable[..., Tensor]:
    """Normal numbers of the test's dtype, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).to(dtype)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def any_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """A type that products of matrices take."""
    return request.param


@pytest.fixture
def normal(any_dtype: torch.dtype) -> Callable[..., Tensor]:
    """`random` for any_dtype."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).to(any_dtype)


@contextmanager
def _forced(method: str) -> Iterator[str]:
    if method != "torch" and ops.kernel_set() == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYPTO_LINEARS", method)
        products.method.cache_clear()
        yield method
    products.method.cache_clear()


@pytest.fixture(params=products.METHODS)
def method(request: pytest.FixtureRequest) -> Iterator[str]:
    """A way of computing products, forced; brgemm still gives way where it has no kernel for a type."""
    with _forced(request.param) as name:
        yield name


@pytest.fixture(params=["brgemm", "loops"])
def own_method(request: pytest.FixtureRequest) -> Iterator[str]:
    """One that promises rows that do not depend on each other: torch's own products do not."""
    with _forced(request.param) as name:
        yield name


@pytest.fixture
def paged(random: Callable[..., Tensor]) -> Callable[..., PagedSequences]:
    """Builds sequences on shuffled pages; slots that hold no token hold NaN."""

    def build(lengths: Sequence[int], heads: tuple[int, int] = (4, 2), head_dim: int = 32, page_tokens: int = 16) -> PagedSequences:
        num_heads, num_kv_heads = heads
        num_pages = [-(-length // page_tokens) for length in lengths]
        order = torch.randperm(sum(num_pages), generator=torch.Generator().manual_seed(1)).int()
        table = torch.full((len(lengths), max(num_pages) + 1), -1, dtype=torch.int32)
        k_cache = torch.full((sum(num_pages), page_tokens, num_kv_heads, head_dim), torch.nan, dtype=random(1).dtype)
        built = PagedSequences(k_cache, k_cache.clone(), table, [], [], [])
        for sequence, length in enumerate(lengths):
            table[sequence, : num_pages[sequence]], order = order[: num_pages[sequence]], order[num_pages[sequence] :]
            built.keys.append(random(length, num_kv_heads, head_dim))
            built.values.append(random(length, num_kv_heads, head_dim))
            built.queries.append(random(length, num_heads, head_dim))
            position = torch.arange(length)
            slots = table[sequence].long()[position // page_tokens] * page_tokens + position % page_tokens
            REFERENCE.write_kv(built.keys[-1], built.values[-1], built.k_cache, built.v_cache, slots)
        return built

    return build
