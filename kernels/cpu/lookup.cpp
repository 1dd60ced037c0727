// greatest and argmax.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "vector.h"

namespace pypto_serving {
namespace {

// The greatest element of a row and its lowest index; NaN if there is one anywhere.
template <typename T>
std::pair<float, int64_t> find_greatest(const T* row, int64_t width) {
  constexpr int kChains = 4;  // as many comparisons wait for each other
  Floats best[kChains];
  Ints index[kChains], unordered = {};
  for (int chain = 0; chain < kChains; ++chain) best[chain] = broadcast(-INFINITY), index[chain] = Ints{};
  for (int64_t first = 0; first < width; first += kChains * kLanes)
    for (int chain = 0; chain < kChains; ++chain) {
      const int64_t begin = first + chain * kLanes;
      if (begin >= width) break;
      const Ints here = kLaneIndex + static_cast<int32_t>(begin);
      const Floats loaded = load(row + begin, width - begin);
      const Floats x = here < static_cast<int32_t>(width) ? loaded : broadcast(-INFINITY);
      unordered |= x != x;
      index[chain] = x > best[chain] ? here : index[chain];
      best[chain] = x > best[chain] ? x : best[chain];
    }
  float greatest = -INFINITY;
  int32_t lowest = 0;
  bool sound = true;
  for (int chain = 0; chain < kChains; ++chain)
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = best[chain][lane];
      const int32_t place = index[chain][lane];
      if (value > greatest || (value == greatest && value > -INFINITY && place < lowest)) greatest = value, lowest = place;
      sound &= chain > 0 || unordered[lane] == 0;
    }
  return {sound ? greatest : NAN, lowest};
}

std::tuple<at::Tensor, at::Tensor> greatest(const at::Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.stride(1) == 1, "greatest: logits must be [S, V] with contiguous rows");
  at::Tensor values = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  at::Tensor ids = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  const int64_t width = logits.size(1), row_stride = logits.stride(0);
  with_element_type(logits, "greatest", [&](auto element) {
    using T = decltype(element);
    const T* from = logits.const_data_ptr<T>();
    float* value = values.mutable_data_ptr<float>();
    int64_t* id = ids.mutable_data_ptr<int64_t>();
    at::parallel_for(0, logits.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) std::tie(value[row], id[row]) = find_greatest(from + row * row_stride, width);
    });
  });
  return {values, ids};
}

at::Tensor argmax(const at::Tensor& logits) { return std::get<1>(greatest(logits)); }

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("greatest", greatest);
  library.impl("argmax", argmax);
}

}  // namespace
}  // namespace pypto_serving
