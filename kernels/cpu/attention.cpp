// paged_attention: causal attention over the paged cache.
//
// A task is a run of query rows of one sequence and one kv head; the query heads of that kv head share the loads:
//
//     rows      [positions x group]   of q, widened to fp32
//     key tile  [D, 64]               64 keys from an absolute multiple of 64 on, transposed, fp32, absent ones zero
//     scores    [rows, 64]            = rows @ key tile, then the online softmax, row by row
//     values    [64, D]               out[rows, D] += scores @ values
//
// All arithmetic of a row runs over its own keys, tile by tile, in one fixed order. A tile outside what the row sees changes nothing.

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <atomic>
#include <vector>

#include "dispatch.h"
#include "vector.h"

namespace pypto_serving {
namespace {

constexpr int64_t kKeyTile = 64;
constexpr int64_t kMaxRows = 64;
constexpr int64_t kBlockRows = 4;
constexpr float kMasked = -1e30f;  // finite: a row that has seen no key yet must not make NaN of inf - inf

// c[R][16 V] += a[R][depth] * b[depth][16 V], each element adding its products in order of depth.
template <int R, int V>
void multiply_add_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t depth) {
  Floats sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = load(c + r * c_stride + v * kLanes);
  for (int64_t d = 0; d < depth; ++d)
    for (int v = 0; v < V; ++v) {
      const Floats lanes = load(b + d * b_stride + v * kLanes);
      for (int r = 0; r < R; ++r) sums[r][v] += a[r * a_stride + d] * lanes;
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
}

template <int R>
void multiply_add_rows(const float* a, int64_t a_stride, const float* b, int64_t width, float* c, int64_t depth) {
  int64_t first = 0;
  for (; first + 4 * kLanes <= width; first += 4 * kLanes) multiply_add_block<R, 4>(a, a_stride, b + first, width, c + first, width, depth);
  for (; first < width; first += kLanes) multiply_add_block<R, 1>(a, a_stride, b + first, width, c + first, width, depth);
}

// c[rows][width] += a[rows][depth] * b[depth][width]; width is a multiple of the lanes.
void multiply_add(const float* a, int64_t a_stride, const float* b, int64_t width, float* c, int64_t rows, int64_t depth) {
  int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows) multiply_add_rows<kBlockRows>(a + row * a_stride, a_stride, b, width, c + row * width, depth);
  for (; row < rows; ++row) multiply_add_rows<1>(a + row * a_stride, a_stride, b, width, c + row * width, depth);
}

// Four rounds of the perfect shuffle transpose 16 x 16 words.
void transpose(Floats (&block)[kLanes]) {
  constexpr Ints kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Ints kHigh = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  for (int round = 0; round < 4; ++round) {
    Floats next[kLanes];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shuffle(block[i], block[i + 8], kLow);
      next[2 * i + 1] = __builtin_shuffle(block[i], block[i + 8], kHigh);
    }
    std::memcpy(block, next, sizeof(next));
  }
}

// Puts one transposed word of 16 keys in its place: one dimension in fp32, two in bf16.
void widen_word(Floats word, int64_t index, float* keys, float) { store(keys + index * kKeyTile, word); }
void widen_word(Floats word, int64_t index, float* keys, c10::BFloat16) {
  const Words bits = reinterpret_cast<Words>(word);
  store(keys + 2 * index * kKeyTile, reinterpret_cast<Floats>(bits << 16));
  store(keys + (2 * index + 1) * kKeyTile, reinterpret_cast<Floats>(bits & 0xffff0000u));
}

// The words `first` .. `first + 15` of a row of `width` elements; what is beyond the row, or of an absent row, is zero.
template <typename T>
Floats load_words(const T* row, int64_t first, int64_t width) {
  constexpr int64_t kWords = sizeof(float) / sizeof(T);
  Floats words = {};
  if (row) std::memcpy(&words, row + first * kWords, std::min<int64_t>(sizeof(words), (width - first * kWords) * sizeof(T)));
  return words;
}

// keys[D rounded up][64] from 64 rows of D elements.
template <typename T>
void load_keys(const T* const* rows, int64_t width, float* keys) {
  const int64_t words = (width * static_cast<int64_t>(sizeof(T)) + 3) / 4;
  for (int64_t key = 0; key < kKeyTile; key += kLanes)
    for (int64_t first = 0; first < words; first += kLanes) {
      Floats block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) block[i] = load_words(rows[key + i], first, width);
      transpose(block);
      for (int64_t i = 0; i < kLanes; ++i) widen_word(block[i], first + i, keys + key, T{});
    }
}

template <typename T>
void load_rows(const T* const* rows, int64_t count, int64_t width, int64_t padded, float* out) {
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < padded; i += kLanes)
      store(out + row * padded + i, rows[row] && i < width ? load(rows[row] + i, width - i) : Floats{});
}

// One sequence's share of a task: rows first .. first + count of the batch.
struct QueryRun {
  int64_t sequence;
  int64_t first;
  int64_t count;
};

struct Problem {
  const at::Tensor& q;
  const at::Tensor& k_cache;
  const at::Tensor& v_cache;
  const at::Tensor& page_table;
  const int64_t* positions;
  at::Tensor& out;
  float scale;
  int64_t window;  // 0: none

  int64_t num_kv_heads() const { return k_cache.size(2); }
  int64_t group() const { return q.size(1) / k_cache.size(2); }
  int64_t head_dim() const { return q.size(2); }
};

// The memory of a thread and the state of its current task.
template <typename T>
class Task {
 public:
  explicit Task(const Problem& problem)
      : problem_(problem), group_(problem.group()), width_(problem.head_dim()), padded_((width_ + 31) / 32 * 32), max_rows_(std::max(kMaxRows, group_)) {
    q_.resize(max_rows_ * padded_);
    out_.resize(max_rows_ * padded_);
    scores_.resize(max_rows_ * kKeyTile);
    keys_.resize(kKeyTile * padded_);
    values_.resize(kKeyTile * padded_);
    highest_.resize(max_rows_);
    weight_.resize(max_rows_);
  }

  void run(const QueryRun& queries, int64_t kv_head) {
    const int64_t* positions = problem_.positions + queries.first;
    const auto [lowest, last] = std::minmax_element(positions, positions + queries.count);
    begin(queries, kv_head);
    const int64_t from = problem_.window ? std::max<int64_t>(0, *lowest - problem_.window + 1) : 0;
    for (int64_t start = from / kKeyTile * kKeyTile; start <= *last; start += kKeyTile) {
      load_tile(queries.sequence, kv_head, start, *last + 1);
      attend_tile(positions, queries.count, start);
    }
    finish(queries, kv_head);
  }

 private:
  void begin(const QueryRun& queries, int64_t kv_head) {
    const int64_t rows = queries.count * group_;
    const T* q = problem_.q.const_data_ptr<T>() + kv_head * group_ * width_;
    const T* sources[kMaxRows];
    for (int64_t first = 0; first < rows; first += kMaxRows) {
      const int64_t count = std::min(kMaxRows, rows - first);
      for (int64_t i = 0; i < count; ++i)
        sources[i] = q + (queries.first + (first + i) / group_) * problem_.q.stride(0) + (first + i) % group_ * width_;
      load_rows(sources, count, width_, padded_, q_.data() + first * padded_);
    }
    std::fill_n(out_.begin(), rows * padded_, 0.0f);
    std::fill_n(highest_.begin(), rows, kMasked);
    std::fill_n(weight_.begin(), rows, 0.0f);
  }

  // Keys and values at positions start .. start + 64, those below `end` that have a page.
  void load_tile(int64_t sequence, int64_t kv_head, int64_t start, int64_t end) {
    const T *key_rows[kKeyTile] = {}, *value_rows[kKeyTile] = {};
    const int64_t page_tokens = problem_.k_cache.size(1), token_stride = problem_.num_kv_heads() * width_;
    const int64_t num_pages = problem_.page_table.size(1);
    const int32_t* pages = problem_.page_table.const_data_ptr<int32_t>() + sequence * num_pages;
    const T *k = problem_.k_cache.const_data_ptr<T>() + kv_head * width_, *v = problem_.v_cache.const_data_ptr<T>() + kv_head * width_;
    end = std::min({end, start + kKeyTile, num_pages * page_tokens});
    for (int64_t position = start; position < end; ++position) {
      const int64_t page = pages[position / page_tokens];
      if (page < 0) continue;
      const int64_t offset = (page * page_tokens + position % page_tokens) * token_stride;
      key_rows[position - start] = k + offset;
      value_rows[position - start] = v + offset;
    }
    load_keys(key_rows, width_, keys_.data());
    load_rows(value_rows, kKeyTile, width_, padded_, values_.data());
  }

  void attend_tile(const int64_t* positions, int64_t count, int64_t start) {
    const int64_t rows = count * group_;
    std::fill_n(scores_.begin(), rows * kKeyTile, 0.0f);
    multiply_add(q_.data(), padded_, keys_.data(), kKeyTile, scores_.data(), rows, width_);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t position = positions[row / group_] - start;
      const int64_t first = problem_.window ? std::max<int64_t>(0, position - problem_.window + 1) : 0;
      soften(row, static_cast<int32_t>(std::min(first, kKeyTile)), static_cast<int32_t>(std::clamp<int64_t>(position + 1, 0, kKeyTile)));
    }
    multiply_add(scores_.data(), kKeyTile, values_.data(), padded_, out_.data(), rows, kKeyTile);
  }

  // Turns a row's scores into weights relative to the highest score so far; keys outside first .. end get none.
  void soften(int64_t row, int32_t first, int32_t end) {
    float* scores = scores_.data() + row * kKeyTile;
    Floats lanes[4];
    Ints visible[4];
    for (int v = 0; v < 4; ++v) {
      const Ints key = kLaneIndex + static_cast<int32_t>(v * kLanes);
      visible[v] = (key >= first) & (key < end);
      lanes[v] = visible[v] ? load(scores + v * kLanes) * problem_.scale : broadcast(kMasked);
    }
    const float before = highest_[row];
    const float highest = std::max(before, max_lanes(maximum(maximum(lanes[0], lanes[1]), maximum(lanes[2], lanes[3]))));
    for (int v = 0; v < 4; ++v) {
      lanes[v] = visible[v] ? exp(lanes[v] - highest) : Floats{};
      store(scores + v * kLanes, lanes[v]);
    }
    const float fade = exp(broadcast(before - highest))[0];
    weight_[row] = weight_[row] * fade + sum_lanes((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    highest_[row] = highest;
    if (fade != 1.0f)
      for (int64_t i = 0; i < padded_; i += kLanes) store(&out_[row * padded_ + i], load(&out_[row * padded_ + i]) * fade);
  }

  void finish(const QueryRun& queries, int64_t kv_head) {
    T* out = problem_.out.mutable_data_ptr<T>() + (queries.first * problem_.q.size(1) + kv_head * group_) * width_;
    for (int64_t row = 0; row < queries.count * group_; ++row) {
      T* to = out + (row / group_ * problem_.q.size(1) + row % group_) * width_;
      for (int64_t i = 0; i < width_; i += kLanes) store(to + i, load(&out_[row * padded_ + i]) / weight_[row], width_ - i);
    }
  }

  const Problem& problem_;
  const int64_t group_, width_, padded_, max_rows_;
  std::vector<float> q_, out_, scores_, keys_, values_, highest_, weight_;
};

std::vector<QueryRun> cut(const at::Tensor& query_starts, int64_t max_count) {
  const int32_t* starts = query_starts.const_data_ptr<int32_t>();
  std::vector<QueryRun> runs;
  for (int64_t sequence = 0; sequence + 1 < query_starts.size(0); ++sequence)
    for (int64_t first = starts[sequence]; first < starts[sequence + 1]; first += max_count)
      runs.push_back({sequence, first, std::min<int64_t>(max_count, starts[sequence + 1] - first)});
  return runs;
}

// Threads take tasks as they become free: sequences differ in length. Neighbouring heads go together when there is enough to share.
template <typename T>
void attend(const Problem& problem, const std::vector<QueryRun>& runs) {
  const int64_t heads = problem.num_kv_heads(), num_tasks = static_cast<int64_t>(runs.size()) * heads;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), num_tasks);
  const int64_t share = static_cast<int64_t>(runs.size()) >= 4 * threads ? heads : 1;
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Task<T> task(problem);
    for (int64_t first = next.fetch_add(share); first < num_tasks; first = next.fetch_add(share))
      for (int64_t i = first; i < std::min(first + share, num_tasks); ++i) task.run(runs[i / heads], i % heads);
  });
}

void check(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache) {
  TORCH_CHECK(q.dim() == 3 && q.stride(2) == 1 && q.stride(1) == q.size(2), "paged_attention: q must be [T, Hq, D] with contiguous heads");
  TORCH_CHECK(k_cache.is_contiguous() && v_cache.is_contiguous() && k_cache.dim() == 4 && k_cache.sizes() == v_cache.sizes() &&
                  k_cache.size(3) == q.size(2) && q.size(1) % k_cache.size(2) == 0,
              "paged_attention: the caches must be contiguous, [pages, page_tokens, Hk, ", q.size(2), "] with Hk dividing ", q.size(1));
  TORCH_CHECK(k_cache.scalar_type() == q.scalar_type() && v_cache.scalar_type() == q.scalar_type(), "paged_attention: q and the caches differ in type");
}

at::Tensor paged_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& page_table,
                           const at::Tensor& query_starts, const at::Tensor& positions, double scale, int64_t window) {
  check(q, k_cache, v_cache);
  TORCH_CHECK(page_table.is_contiguous() && query_starts.is_contiguous() && positions.is_contiguous() &&
                  page_table.size(0) + 1 == query_starts.size(0) && positions.size(0) == q.size(0),
              "paged_attention: page_table [B, P], query_starts [B + 1] and positions [T] must be contiguous and agree");
  at::Tensor out = at::zeros(q.sizes(), q.options());
  const Problem problem{q, k_cache, v_cache, page_table, positions.const_data_ptr<int64_t>(), out, static_cast<float>(scale), window};
  const auto runs = cut(query_starts, std::max<int64_t>(1, kMaxRows / problem.group()));
  if (!runs.empty()) with_element_type(q, "paged_attention", [&](auto element) { attend<decltype(element)>(problem, runs); });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) { library.impl("paged_attention", paged_attention); }

}  // namespace
}  // namespace pypto_serving
