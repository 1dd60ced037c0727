"""Attention over pages against a softmax in float64. Slots that hold no token, and pages of nobody, hold NaN."""

import pytest
import torch

from kernels.scratch import scratch_bytes
from kernels.testing.depth import Depth

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(900)]

#: The sums are exact but for bf16 weights (2^-9) of values up to 4, and the result's own rounding.
TOLERANCE = 1.5e-2


#: What a query scores at the key that it is made of, before the softmax: that key has most of the weight.
PEAK = 8.0


class Sequences:
    """Sequences of given lengths on shuffled pages. Each query is made of one key, so that a result without that key is another one.

    The first head of a row has the last key that the row sees, the second one the first key, others any.
    """

    def __init__(self, random, lengths, heads=(4, 2), head_dim=32, page_tokens=16, window=0):
        num_pages = [-(-length // page_tokens) for length in lengths]
        self.heads, self.page_tokens, self.window = heads, page_tokens, window
        self.page_table = torch.full((len(lengths), max(num_pages) + 1), -1, dtype=torch.int32)
        shape = (sum(num_pages) + 1, page_tokens, heads[1], head_dim)
        self.k_cache, self.v_cache = (torch.full(shape, torch.nan, dtype=torch.bfloat16) for _ in range(2))
        free = iter((torch.randperm(sum(num_pages), generator=torch.Generator().manual_seed(1)) + 1).tolist())
        self.keys, self.values = ([random(length, heads[1], head_dim) for length in lengths] for _ in range(2))
        self.queries = [self._queries(keys) for keys in self.keys]
        for sequence, length in enumerate(lengths):
            for page in range(num_pages[sequence]):
                self.page_table[sequence, page] = place = next(free)
                tokens = slice(page * page_tokens, min(length, (page + 1) * page_tokens))
                count = tokens.stop - tokens.start
                self.k_cache[place, :count] = self.keys[sequence][tokens]
                self.v_cache[place, :count] = self.values[sequence][tokens]

    def _queries(self, keys):
        length, _, head_dim = keys.shape
        of = torch.Generator().manual_seed(length)
        rows = []
        for last in range(length):
            first = self._first(last)
            peaks = torch.randint(first, last + 1, (self.heads[0],), generator=of)
            peaks[:2] = torch.tensor([last, first])[: self.heads[0]]
            rows.append(keys[peaks, torch.arange(self.heads[0]) * self.heads[1] // self.heads[0]])
        return torch.stack(rows) * (PEAK * head_dim**-0.5)

    def _first(self, position):
        return max(0, position - self.window + 1) if self.window else 0

    def free_before(self, sequence, position):
        """Gives up the pages whose keys all come before a position."""
        for page in range(position // self.page_tokens):
            self.k_cache[self.page_table[sequence, page]] = torch.nan
            self.v_cache[self.page_table[sequence, page]] = torch.nan
            self.page_table[sequence, page] = -1

    def attend(self, run, chunks, padding=0, depth=Depth.TENSOR_GRAPH):
        """One batch of rows first .. end of sequences, given as (sequence, first, end)."""
        q = torch.cat([self.queries[s][a:b] for s, a, b in chunks])
        q = torch.cat((q, q.new_full((padding, *q.shape[1:]), torch.nan)))
        positions = torch.cat([torch.arange(a, b) for _, a, b in chunks] + [torch.full((padding,), -1)])
        starts = torch.tensor([0] + [b - a for _, a, b in chunks]).cumsum(0).int()
        table = self.page_table[[s for s, _, _ in chunks]]
        if padding and len(q) - padding == len(chunks):  # a padded decode batch has a line for each row
            table = torch.cat((table, torch.full((padding, table.shape[1]), -1, dtype=torch.int32)))
            starts = torch.cat((starts, starts[-1].repeat(padding)))
        scale = q.shape[2] ** -0.5
        return run(
            "paged_attention:paged_attention", q, self.k_cache, self.v_cache, table, starts, positions, scale, self.window, depth=depth
        )

    def expected(self, chunks):
        return torch.cat([self.row(s, position, self._first(position), position) for s, a, b in chunks for position in range(a, b)])

    def row(self, sequence, position, first, last):
        """Of one row that sees the keys first .. last."""
        group = self.heads[0] // self.heads[1]
        keys, values = (x[sequence][first : last + 1].double().repeat_interleave(group, dim=1) for x in (self.keys, self.values))
        q = self.queries[sequence][position].double()
        shares = torch.einsum("hd,khd->hk", q, keys * q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum("hk,khd->hd", shares, values).unsqueeze(0)

    def check(self, run, chunks, padding=0, depth=Depth.TENSOR_GRAPH):
        found = self.attend(run, chunks, padding, depth)
        live = len(found) - padding
        assert (found[live:] == 0).all()
        torch.testing.assert_close(found[:live].double(), self.expected(chunks), rtol=0, atol=TOLERANCE)
        return found


def last_rows(lengths):
    return [(sequence, length - 1, length) for sequence, length in enumerate(lengths)]


@pytest.mark.parametrize("length", [17, 65, 129, 257, 513])
def test_the_oracle_tells_a_row_from_one_that_misses_its_first_or_last_key(random, length):
    sequences, last = Sequences(random, [length]), length - 1
    whole = sequences.row(0, last, 0, last)
    for first, end in ((0, last - 1), (1, last)):
        assert (sequences.row(0, last, first, end) - whole).abs().max() > 20 * TOLERANCE


def fast(*values):
    return pytest.param(*values, marks=pytest.mark.kernels_fast)


# Four pages are a key tile.
@pytest.mark.parametrize("lengths", [[1], [2], [15], [16], [17], [63], [64], [65], [128], [129], [200], fast([5, 33, 65]), [1] * 9])
def test_decode_of_any_lengths(run, random, lengths):
    Sequences(random, lengths).check(run, last_rows(lengths))


@pytest.mark.parametrize(("page_tokens", "length"), [(32, 127), (32, 129), (64, 257), fast(128, 129), (128, 513)])
def test_decode_of_any_page_size(run, random, page_tokens, length):
    Sequences(random, [length], page_tokens=page_tokens).check(run, last_rows([length]))


@pytest.mark.parametrize(
    ("heads", "head_dim"),
    [((16, 8), 128), ((40, 8), 128), ((64, 8), 128), ((4, 4), 128), ((8, 1), 128), ((9, 3), 64), ((15, 5), 64), ((32, 32), 64)],
)
def test_decode_with_heads_of_real_models(run, random, heads, head_dim):
    lengths = [130, 7]
    Sequences(random, lengths, heads, head_dim, page_tokens=128).check(run, last_rows(lengths))


def test_padding_rows_of_decode_come_out_zero(run, random):
    Sequences(random, [20, 3]).check(run, last_rows([20, 3]), padding=2)


# With two heads for each kv head, 128 rows are a query tile.
@pytest.mark.parametrize("rows", [2, 17, 64, 65, 127, 128, 129, 260])
def test_prompt_of_any_length(run, random, rows):
    Sequences(random, [rows]).check(run, [(0, 0, rows)])


@pytest.mark.parametrize("chunk", [fast((0, 16, 40)), (0, 17, 70), (0, 63, 65), (0, 64, 96), (0, 1, 130)])
def test_chunk_behind_a_context(run, random, chunk):
    Sequences(random, [130]).check(run, [chunk])


@pytest.mark.kernels_fast
def test_batch_mixed_of_prompts_chunks_and_decode(run, random):
    chunks = [(0, 0, 17), (1, 32, 33), (2, 20, 40), (3, 0, 1)]
    Sequences(random, [17, 33, 40, 1]).check(run, chunks, padding=3)


@pytest.mark.parametrize("heads", [(16, 8), (40, 8)])
def test_prompts_with_heads_of_real_models(run, random, heads):
    Sequences(random, [140], heads, head_dim=128, page_tokens=128).check(run, [(0, 70, 140)])


@pytest.mark.parametrize("window", [16, 20, 64, 100])
def test_decode_sees_its_window_only(run, random, window):
    sequences = Sequences(random, [150, 40], window=window)
    sequences.free_before(0, 150 - window)
    sequences.check(run, last_rows([150, 40]))


@pytest.mark.parametrize("window", [16, 20, 64])
def test_rows_of_a_chunk_see_their_windows_only(run, random, window):
    sequences = Sequences(random, [150], window=window)
    sequences.free_before(0, 100 - window + 1)
    sequences.check(run, [(0, 100, 150)])


@pytest.mark.parametrize("window", [0, 20])
def test_a_row_is_the_same_from_decode_and_from_any_chunk(run, random, window):
    sequences = Sequences(random, [100, 70], window=window)
    decoded = sequences.attend(run, [(0, 89, 90)])
    assert torch.equal(sequences.attend(run, [(0, 80, 100)])[9:10], decoded)
    assert torch.equal(sequences.attend(run, [(1, 0, 70), (0, 60, 100)])[99:100], decoded)
    assert torch.equal(sequences.attend(run, [(0, 89, 90), (1, 69, 70)])[:1], decoded)


@pytest.mark.kernels_fast
def test_a_row_is_the_same_from_decode_and_from_a_prompt_of_one_key_tile(run, random):
    sequences = Sequences(random, [40, 9])
    decoded = sequences.check(run, [(0, 29, 30)])
    assert torch.equal(sequences.check(run, [(0, 20, 40)])[9:10], decoded)
    assert torch.equal(sequences.check(run, [(1, 0, 9), (0, 0, 40)])[38:39], decoded)


@pytest.mark.kernels_fast
def test_rows_taken_a_few_at_a_time_come_out_alike(run, random):
    """A block of rows may end within a sequence, and leave it one row."""
    sequences = Sequences(random, [33, 77])
    batch = sequences.k_cache, sequences.v_cache, sequences.page_table
    row_bytes = scratch_bytes(1, sequences.page_table.shape[1], heads=4, head_dim=32)
    q, positions = torch.cat((sequences.queries[0], sequences.queries[1])), torch.cat((torch.arange(33), torch.arange(77))).int()
    arguments = (q, *batch, *torch.tensor([[0, 33], [33, 110]], dtype=torch.int32), positions, 32**-0.5, 0)
    assert torch.equal(run("paged_prefill:paged_prefill", *arguments, 32 * row_bytes), run("paged_prefill:paged_prefill", *arguments))
    rows = torch.tensor([32, 109, 5])
    arguments = (q[rows], *batch[:2], sequences.page_table[[0, 1, 0]], positions[rows], 32**-0.5, 0)
    whole = run("paged_decode:paged_decode", *arguments)
    assert torch.equal(run("paged_decode:paged_decode", *arguments, 2 * row_bytes), whole)
    torch.testing.assert_close(whole[:1].double(), sequences.expected([(0, 32, 33)]), rtol=0, atol=TOLERANCE)


def test_every_pass_of_the_compiler_keeps_decode(run, random):
    Sequences(random, [70, 3], (2, 1)).check(run, last_rows([70, 3]), depth=Depth.ALL_PASSES)


@pytest.mark.parametrize("chunk", [(0, 0, 18), (0, 60, 70)])
def test_every_pass_of_the_compiler_keeps_prompts(run, random, chunk):
    """Of one key tile, and of two, which are merged."""
    Sequences(random, [chunk[2]], (2, 1)).check(run, [chunk], depth=Depth.ALL_PASSES)
