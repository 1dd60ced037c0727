// packed_experts: the MLPs of a mixture of experts over panels (see panel.h), each on the rows that chose it.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "linear.h"

namespace pypto_serving {
namespace {

// Rows by expert: those of expert e are starts[e] .. starts[e + 1] - 1; place[t * k + slot] says which is that of a row's choice.
struct Groups {
  std::vector<int64_t> starts;
  std::vector<int64_t> place;
};

Groups group_by_expert(const at::Tensor& expert_ids, int64_t num_experts) {
  const int64_t count = expert_ids.numel(), *chosen = expert_ids.const_data_ptr<int64_t>();
  Groups groups{std::vector<int64_t>(num_experts + 1), std::vector<int64_t>(count)};
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK_INDEX(chosen[i] >= 0 && chosen[i] < num_experts, "packed_experts: expert ", chosen[i], " of ", num_experts);
    ++groups.starts[chosen[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) groups.starts[e + 1] += groups.starts[e];
  std::vector<int64_t> next(groups.starts.begin(), groups.starts.end() - 1);
  for (int64_t i = 0; i < count; ++i) groups.place[i] = next[chosen[i]]++;
  return groups;
}

// multiply_panels for every expert and its rows. Threads take contiguous panels of about the same cost: a panel costs its rows, and
// about sixteen more for being read.
template <typename Method, typename T, typename Store>
void multiply_experts(const typename Method::Input* x, const std::vector<int64_t>& starts, const T* panels, int64_t depth,
                      int64_t num_panels, Store store) {
  const int64_t num_experts = static_cast<int64_t>(starts.size()) - 1, threads = at::get_num_threads();
  const auto cost = [&](int64_t e) { return starts[e + 1] > starts[e] ? starts[e + 1] - starts[e] + 16 : 0; };
  int64_t total = 0;
  for (int64_t e = 0; e < num_experts; ++e) total += num_panels * cost(e);
  at::parallel_for(0, threads, 1, [&](int64_t thread, int64_t end) {
    const int64_t low = total * thread / threads, high = total * end / threads;
    for (int64_t e = 0, before = 0; e < num_experts; before += num_panels * cost(e++)) {
      if (!cost(e)) continue;
      const auto panel_at = [&](int64_t bound) { return std::clamp((bound - before + cost(e) - 1) / cost(e), int64_t{0}, num_panels); };
      multiply_panels<Method>(
          x + starts[e] * depth, starts[e + 1] - starts[e], panels + e * num_panels * kPanel * depth, depth, panel_at(low), panel_at(high),
          [&](int64_t row, int64_t count, int64_t panel, const float* sums) { store(starts[e] + row, count, panel, sums); });
    }
    Method::release();
  });
}

// outputs[place[t][slot]] times weights[t][slot], added in order of the slots.
template <typename T>
void add_weighted(const T* outputs, const std::vector<int64_t>& place, const float* weights, int64_t num_rows, int64_t top_k,
                  int64_t width, T* out) {
  at::parallel_for(0, num_rows, rows_per_task(top_k * width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < width; i += kLanes) {
        Floats total = {};
        for (int64_t choice = row * top_k; choice < (row + 1) * top_k; ++choice)
          total += load(outputs + place[choice] * width + i, width - i) * weights[choice];
        store(out + row * width + i, total, width - i);
      }
  });
}

template <typename Method, typename T>
void run_experts(const at::Tensor& x, const at::Tensor& weights, const Groups& groups, const at::Tensor& gate_up, const at::Tensor& down,
                 int64_t inner, at::Tensor& out) {
  using Input = typename Method::Input;
  const int64_t num_rows = x.size(0), width = x.size(1), top_k = weights.size(1), count = num_rows * top_k;
  const int64_t depth = gate_up.size(2) * gate_up.size(4), inner_depth = down.size(2) * down.size(4);
  const at::Tensor rows = readable_rows<Input>(x, depth);
  at::Tensor sorted = at::empty({count, depth}, rows.options());
  for (int64_t choice = 0; choice < count; ++choice)
    std::copy_n(rows.template const_data_ptr<Input>() + choice / top_k * depth, depth,
                sorted.template mutable_data_ptr<Input>() + groups.place[choice] * depth);
  const Floats none[2] = {};
  at::Tensor activations = at::empty({count, inner}, x.options()), outputs = at::empty({count, width}, x.options());
  T *activated = activations.mutable_data_ptr<T>(), *produced = outputs.mutable_data_ptr<T>();
  multiply_experts<Method>(sorted.template const_data_ptr<Input>(), groups.starts, gate_up.template const_data_ptr<T>(), depth,
                           gate_up.size(1), [&](int64_t row, int64_t block, int64_t panel, const float* sums) {
                             store_gated(sums, block, panel, none, activated + row * inner, inner);
                           });
  const at::Tensor inputs = readable_rows<Input>(activations, inner_depth);
  multiply_experts<Method>(inputs.template const_data_ptr<Input>(), groups.starts, down.template const_data_ptr<T>(), inner_depth,
                           down.size(1), [&](int64_t row, int64_t block, int64_t panel, const float* sums) {
                             store_sums(sums, block, panel, none, produced + row * width, width);
                           });
  add_weighted(produced, groups.place, weights.const_data_ptr<float>(), num_rows, top_k, width, out.mutable_data_ptr<T>());
}

// x [T, H], weights [T, k] fp32 and expert_ids [T, k] int64, gate_up panels (gated) of [E, 2 I, H] and down panels of [E, H, I] -> [T, H].
at::Tensor packed_experts(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& expert_ids, const at::Tensor& gate_up,
                          const at::Tensor& down, int64_t inner, bool brgemm) {
  TORCH_CHECK(x.dim() == 2 && weights.dim() == 2 && weights.sizes() == expert_ids.sizes() && weights.size(0) == x.size(0) &&
                  weights.scalar_type() == at::kFloat && weights.is_contiguous() && expert_ids.is_contiguous(),
              "packed_experts: weights fp32 and expert_ids must be contiguous, [T, k], for x [T, H]");
  TORCH_CHECK(x.scalar_type() == gate_up.scalar_type() && x.scalar_type() == down.scalar_type() && gate_up.dim() == 5 && down.dim() == 5 &&
                  gate_up.size(0) == down.size(0) && gate_up.size(1) == (inner + kLanes - 1) / kLanes &&
                  down.size(1) == (x.size(1) + kPanel - 1) / kPanel,
              "packed_experts: panels must be as pack_weight gives them for [E, 2 I, H], gated, and [E, H, I], of x's type");
  at::Tensor out = at::empty(x.sizes(), x.options());
  const Groups groups = group_by_expert(expert_ids, gate_up.size(0));
  with_weight_type(x, "packed_experts", [&](auto element) {
    using T = decltype(element);
    TORCH_CHECK(gate_up.size(2) * gate_up.size(4) == padded_depth<T>(x.size(1)) && down.size(2) * down.size(4) == padded_depth<T>(inner),
                "packed_experts: panels of another depth than ", x.size(1), " and ", inner);
    with_method<T>(brgemm, "packed_experts",
                   [&](auto method) { run_experts<decltype(method), T>(x, weights, groups, gate_up, down, inner, out); });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(pypto_serving, library) {
  library.def(
      "packed_experts(Tensor x, Tensor weights, Tensor expert_ids, Tensor gate_up, Tensor down, int inner, bool brgemm) -> Tensor");
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) { library.impl("packed_experts", packed_experts); }

}  // namespace
}  // namespace pypto_serving
