// paged_attention: causal attention over the paged cache.
//
// A task is a run of query rows of one sequence and one kv head; the query heads of that kv head share the loads:
//
//     rows      [positions x group]   of q
//     key tile  [D, 64]               64 keys from an absolute multiple of 64 on, transposed, absent ones zero
//     scores    [rows, 64]            = rows @ key tile, then the online softmax, row by row
//     values    [64, D]               accumulator[rows, D] += probabilities @ values
//
// Products are those of multiply.h: of pairs in bf16 where the CPU has them, else of elements widened to fp32; sums are fp32.
// All arithmetic of a row runs over its own keys, tile by tile, in one fixed order. A tile outside what the row sees changes nothing, nor
// does a key in its tile that it must not see: its probability is zero, and where zero times its value would not be zero,
// the value is cleared.

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <atomic>
#include <tuple>
#include <vector>

#include "dispatch.h"
#include "key_tile.h"
#include "multiply.h"
#include "vector.h"

namespace pypto_serving {
namespace {

constexpr int64_t kMaxRows = 64;
constexpr float kMasked = -1e30f;  // finite: a row that has seen no key yet must not make NaN of inf - inf

// Query rows first .. first + count of one sequence, and the kv heads head .. head + heads.
struct Task {
  int64_t sequence;
  int64_t first;
  int64_t count;
  int64_t head;
  int64_t heads;
};

// Where the tokens of a key tile lie in the caches, from which kv head on; negative for absent tokens.
struct KeyTile {
  int64_t head;
  int64_t tokens[kKeyTile];
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

  int64_t num_heads() const { return q.size(1); }
  int64_t num_kv_heads() const { return k_cache.size(2); }
  int64_t group() const { return num_heads() / num_kv_heads(); }
  int64_t head_dim() const { return q.size(2); }
};

// The memory of a thread and the state of its task. State rows are ordered kv head, query row, query head of the group.
template <typename T>
class Attention {
 public:
  explicit Attention(const Problem& problem)
      : problem_(problem),
        group_(problem.group()),
        width_(problem.head_dim()),
        padded_(whole_vectors(width_)),
        depth_(padded_ / kDepthPerWord<T>) {
    const int64_t rows = std::max(kMaxRows, group_);
    q_.resize(rows * depth_);
    accumulator_.resize(rows * padded_);
    scores_.resize(rows * kKeyTile);
    keys_.resize(kKeyTile * depth_);
    values_.resize(kValueWords * padded_);
    zeros_.resize(width_);
    running_max_.resize(rows);
    denominator_.resize(rows * kLanes);
  }

  // `following` is the task that comes after this one on the same thread, if any: its first tile is asked for in time.
  void run(const Task& task, const Task* following) {
    const auto [first, end] = keys_of(task);
    begin(task);
    if (!located_) locate(task, first);
    for (int64_t start = first / kKeyTile * kKeyTile; start < end; start += kKeyTile) {
      tile_ = next_;
      if (start + kKeyTile < end) locate(task, start + kKeyTile);
      else if (following) locate(*following, std::get<0>(keys_of(*following)));
      for (int64_t head = 0; head < task.heads; ++head) attend_tile(task, head, start);
    }
    located_ = following != nullptr;
    finish(task);
  }

 private:
  static constexpr int64_t kValueWords = kKeyTile / kDepthPerWord<T>;  // words of depth in a tile of values

  static int64_t whole_vectors(int64_t width) {
    constexpr int64_t kStep = kLanes * kPerWord<T>;
    return (width + kStep - 1) / kStep * kStep;
  }

  // The keys that any row of the task sees: the first one, and the one after the last.
  std::tuple<int64_t, int64_t> keys_of(const Task& task) const {
    const int64_t* positions = problem_.positions + task.first;
    const auto [lowest, last] = std::minmax_element(positions, positions + task.count);
    return {first_key(*lowest), *last + 1};
  }

  int64_t first_key(int64_t position) const { return problem_.window ? std::max<int64_t>(0, position - problem_.window + 1) : 0; }

  // Which keys of the tile from `start` on a query sees; none if the second is not above the first.
  std::tuple<int64_t, int64_t> seen(const Task& task, int64_t query, int64_t start) const {
    const int64_t position = problem_.positions[task.first + query];
    return {std::clamp<int64_t>(first_key(position) - start, 0, kKeyTile), std::clamp<int64_t>(position + 1 - start, 0, kKeyTile)};
  }

  // Where a state row lies in q and in the result, in heads.
  int64_t head_of(const Task& task, int64_t row) const {
    const int64_t rows = task.count * group_, head = task.head + row / rows, query = row % rows / group_;
    return (task.first + query) * problem_.num_heads() + head * group_ + row % group_;
  }

  void begin(const Task& task) {
    const int64_t rows = task.heads * task.count * group_, num_heads = problem_.num_heads(), row_stride = problem_.q.stride(0);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = head_of(task, row);
      const T* from = problem_.q.const_data_ptr<T>() + head / num_heads * row_stride + head % num_heads * width_;
      for (int64_t i = 0; i < depth_; i += kLanes)
        store(&q_[row * depth_ + i], kPaired<T> ? load_words(from, i, width_) : load(from + i, std::max<int64_t>(0, width_ - i)));
    }
    std::fill_n(accumulator_.begin(), rows * padded_, 0.0f);
    std::fill_n(running_max_.begin(), rows, kMasked);
    std::fill_n(denominator_.begin(), rows * kLanes, 0.0f);
  }

  // Finds the tokens of the tile at position `at` in the caches, those that a row of the task sees and that have a page.
  void locate(const Task& task, int64_t at) {
    const int64_t page_tokens = problem_.k_cache.size(1), stride = problem_.num_kv_heads() * width_;
    const int64_t num_pages = problem_.page_table.size(1), cache_pages = problem_.k_cache.size(0);
    const int32_t* pages = problem_.page_table.const_data_ptr<int32_t>() + task.sequence * num_pages;
    const auto [first_seen, end_seen] = keys_of(task);
    const int64_t start = at / kKeyTile * kKeyTile, end = std::min({end_seen, start + kKeyTile, num_pages * page_tokens});
    next_.head = task.head;
    std::fill_n(next_.tokens, kKeyTile, -1);
    for (int64_t position = std::max(start, first_seen); position < end;) {
      const int64_t page = pages[position / page_tokens], first = position % page_tokens;
      TORCH_CHECK_INDEX(page < cache_pages, "paged_attention: page ", page, " of ", cache_pages);
      const int64_t page_end = std::min(end, position - first + page_tokens);
      int64_t offset = (page * page_tokens + first) * stride;
      for (; position < page_end; ++position, offset += stride)
        if (page >= 0) next_.tokens[position - start] = offset;
    }
  }

  void find_rows(const at::Tensor& cache, int64_t head) {
    const T* now = cache.const_data_ptr<T>() + (tile_.head + head) * width_;
    const T* next = cache.const_data_ptr<T>() + (next_.head + head) * width_;
    for (int64_t key = 0; key < kKeyTile; ++key) {
      rows_.now[key] = tile_.tokens[key] < 0 ? zeros_.data() : now + tile_.tokens[key];
      rows_.next[key] = next_.tokens[key] < 0 ? zeros_.data() : next + next_.tokens[key];
    }
  }

  void attend_tile(const Task& task, int64_t head, int64_t start) {
    const int64_t rows = task.count * group_, first_row = head * rows;
    find_rows(problem_.k_cache, head);
    load_keys(rows_, width_, padded_, keys_.data());
    find_rows(problem_.v_cache, head);
    load_values(rows_, width_, padded_, values_.data());
    Prefetch next_values(rows_, width_);
    std::fill_n(scores_.begin(), rows * kKeyTile, 0.0f);
    multiply_add<T>(&q_[first_row * depth_], depth_, keys_.data(), kKeyTile, scores_.data(), rows, depth_, next_values);
    for (int64_t row = 0; row < rows; ++row) {
      const auto [first, end] = seen(task, row / group_, start);
      online_softmax_step(&scores_[row * kKeyTile], first_row + row, first, end);
    }
    accumulate(task, first_row, start, next_values);
  }

  // Turns a row's scores into probabilities relative to its running max, and rescales its sums; keys outside first .. end get none.
  void online_softmax_step(float* scores, int64_t row, int64_t first, int64_t end) {
    if (first >= end) {
      std::fill_n(scores, kKeyTile, 0.0f);
      return;
    }
    Floats lanes[4];
    Ints visible[4];
    for (int v = 0; v < 4; ++v) {
      const Ints key = kLaneIndex + static_cast<int32_t>(v * kLanes);
      visible[v] = (key >= static_cast<int32_t>(first)) & (key < static_cast<int32_t>(end));
      lanes[v] = visible[v] ? load(scores + v * kLanes) * problem_.scale : broadcast(kMasked);
    }
    const float before = running_max_[row];
    const float running_max = std::max(before, max_lanes(maximum(maximum(lanes[0], lanes[1]), maximum(lanes[2], lanes[3]))));
    for (int v = 0; v < 4; ++v) lanes[v] = visible[v] ? exp(lanes[v] - running_max) : Floats{};
    const float rescale = exp(broadcast(before - running_max))[0];
    float* denominator = &denominator_[row * kLanes];
    store(denominator, load(denominator) * rescale + ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])));
    store_probabilities<T>(lanes, scores);
    running_max_[row] = running_max;
    float* sums = &accumulator_[row * padded_];
    if (rescale != 1.0f)
      for (int64_t i = 0; i < padded_; i += kLanes) store(sums + i, load(sums + i) * rescale);
  }

  // Adds the values of a tile, times the probabilities, to the accumulators of a kv head's rows.
  void accumulate(const Task& task, int64_t first_row, int64_t start, Prefetch& next_values) {
    float* accumulator = &accumulator_[first_row * padded_];
    if (!hides(task, start) || all_finite<T>(values_.data(), padded_)) {
      multiply_add<T, kProbabilityParts<T>>(scores_.data(), kKeyTile, values_.data(), padded_, accumulator, task.count * group_,
                                            kValueWords, next_values);
      return;
    }
    for (int64_t query = 0; query < task.count; ++query) {
      const auto [first, end] = seen(task, query, start);
      std::vector<float> visible = values_;
      clear_values_outside<T>(first, end, padded_, visible.data());
      const int64_t row = query * group_;
      multiply_add<T, kProbabilityParts<T>>(&scores_[row * kKeyTile], kKeyTile, visible.data(), padded_,
                                            accumulator + row * padded_, group_, kValueWords, next_values);
    }
  }

  // Whether the tile from `start` on has a key that one row of the task sees and another one does not.
  bool hides(const Task& task, int64_t start) const {
    const auto all = seen(task, 0, start);
    for (int64_t query = 1; query < task.count; ++query)
      if (seen(task, query, start) != all) return true;
    return false;
  }

  void finish(const Task& task) {
    T* out = problem_.out.mutable_data_ptr<T>();
    for (int64_t row = 0; row < task.heads * task.count * group_; ++row)
      store_result(&accumulator_[row * padded_], sum_lanes(load(&denominator_[row * kLanes])), width_, padded_,
                   out + head_of(task, row) * width_);
  }

  const Problem& problem_;
  const int64_t group_, width_, padded_, depth_;  // padded_ in elements, depth_ the same in words of an operand
  std::vector<float> q_, scores_, keys_, values_, running_max_, denominator_, accumulator_;  // scores_ become probabilities
  std::vector<T> zeros_;  // an absent token
  KeyTile tile_, next_;
  KeyRows<T> rows_;
  bool located_ = false;  // whether next_ is the first tile of the task to come
};

// A task has up to kMaxRows state rows. Few sequences are spread by the head; with many a task takes the heads together, whose
// keys of a token lie side by side in memory.
std::vector<Task> cut(const Problem& problem, const at::Tensor& query_starts) {
  const int32_t* starts = query_starts.const_data_ptr<int32_t>();
  const int64_t num_sequences = query_starts.size(0) - 1, num_heads = problem.num_kv_heads(), group = problem.group();
  const bool spread = num_sequences < 4 * at::get_num_threads();
  const int64_t max_count = std::max<int64_t>(1, kMaxRows / group);
  std::vector<Task> tasks;
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    TORCH_CHECK_INDEX(starts[sequence] >= 0 && starts[sequence + 1] <= problem.q.size(0), "paged_attention: rows ", starts[sequence], " to ",
                      starts[sequence + 1], " of ", problem.q.size(0));
    for (int64_t first = starts[sequence]; first < starts[sequence + 1]; first += max_count) {
      const int64_t count = std::min<int64_t>(max_count, starts[sequence + 1] - first);
      const int64_t heads = spread ? 1 : std::clamp<int64_t>(kMaxRows / (count * group), 1, num_heads);
      for (int64_t head = 0; head < num_heads; head += heads)
        tasks.push_back({sequence, first, count, head, std::min(heads, num_heads - head)});
    }
  }
  return tasks;
}

// A second thread pays from about this many key tiles on.
int64_t useful_threads(const Problem& problem, const std::vector<Task>& tasks) {
  int64_t tiles = 0;
  for (const Task& task : tasks) tiles += (problem.positions[task.first + task.count - 1] / kKeyTile + 1) * task.heads;
  return std::min<int64_t>({at::get_num_threads(), static_cast<int64_t>(tasks.size()), tiles / 4 + 1});
}

// Threads take tasks as they become free, for sequences differ in length; one task ahead as long as that leaves none of them idle.
template <typename T>
void attend(const Problem& problem, const std::vector<Task>& tasks) {
  const int64_t threads = useful_threads(problem, tasks), num_tasks = static_cast<int64_t>(tasks.size());
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Attention<T> attention(problem);
    for (int64_t now = next++, following; now < num_tasks; now = following < 0 ? next++ : following) {
      following = next + threads <= num_tasks ? next++ : -1;
      attention.run(tasks[now], following >= 0 && following < num_tasks ? &tasks[following] : nullptr);
    }
  });
}

void check(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache) {
  TORCH_CHECK(q.dim() == 3 && q.stride(2) == 1 && q.stride(1) == q.size(2), "paged_attention: q must be [T, Hq, D] with contiguous heads");
  TORCH_CHECK(k_cache.is_contiguous() && v_cache.is_contiguous() && k_cache.dim() == 4 && k_cache.sizes() == v_cache.sizes() &&
                  k_cache.size(3) == q.size(2) && q.size(1) % k_cache.size(2) == 0,
              "paged_attention: the caches must be contiguous, [pages, page_tokens, Hk, ", q.size(2), "] with Hk dividing ", q.size(1));
  TORCH_CHECK(k_cache.scalar_type() == q.scalar_type() && v_cache.scalar_type() == q.scalar_type(),
              "paged_attention: q and the caches differ in type");
}

at::Tensor paged_attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, const at::Tensor& page_table,
                           const at::Tensor& query_starts, const at::Tensor& positions, double scale, int64_t window) {
  check(q, k_cache, v_cache);
  TORCH_CHECK(page_table.is_contiguous() && query_starts.is_contiguous() && positions.is_contiguous() &&
                  page_table.size(0) + 1 == query_starts.size(0) && positions.size(0) == q.size(0),
              "paged_attention: page_table [B, P], query_starts [B + 1] and positions [T] must be contiguous and agree");
  at::Tensor out = at::zeros(q.sizes(), q.options());
  const Problem problem{q, k_cache, v_cache, page_table, positions.const_data_ptr<int64_t>(), out, static_cast<float>(scale), window};
  const auto tasks = cut(problem, query_starts);
  if (!tasks.empty()) with_element_type(q, "paged_attention", [&](auto element) { attend<decltype(element)>(problem, tasks); });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) { library.impl("paged_attention", paged_attention); }

}  // namespace
}  // namespace pypto_serving
