// moe_route.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "dispatch.h"
#include "vector.h"

namespace pypto_serving {
namespace {

void softmax(float* scores, int64_t count) {
  Floats highest = broadcast(-INFINITY);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats inside = kLaneIndex < static_cast<int32_t>(count - i) ? load(scores + i, count - i) : broadcast(-INFINITY);
    highest = maximum(inside, highest);
  }
  const float top = max_lanes(highest);
  Floats total = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats e = kLaneIndex < static_cast<int32_t>(count - i) ? exp(load(scores + i, count - i) - top) : Floats{};
    store(scores + i, e, count - i);
    total += e;
  }
  const float sum = sum_lanes(total);
  for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

void sigmoid(float* scores, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(scores + i, 1.0f / (exp(-load(scores + i, count - i)) + 1.0f), count - i);
}

// The best `top_k` of the scores, best first, the lowest id first among equals. Takes the chosen ones out of `scores`.
void choose(float* scores, int64_t count, int64_t top_k, float* weights, int64_t* ids) {
  for (int64_t k = 0; k < top_k; ++k) {
    const float* best = std::max_element(scores, scores + count);
    ids[k] = best - scores;
    weights[k] = *best;
    scores[ids[k]] = -INFINITY;
  }
}

void renormalise(float* weights, int64_t top_k) {
  float total = 0.0f;
  for (int64_t k = 0; k < top_k; ++k) total += weights[k];
  for (int64_t k = 0; k < top_k; ++k) weights[k] /= total;
}

std::tuple<at::Tensor, at::Tensor> moe_route(const at::Tensor& router_logits, int64_t top_k, bool normalise, c10::string_view scoring) {
  const int64_t num_rows = router_logits.size(0), num_experts = router_logits.size(1);
  TORCH_CHECK(top_k >= 1 && top_k <= num_experts, "moe_route: top_k ", top_k, " of ", num_experts, " experts");
  TORCH_CHECK(scoring == "softmax" || scoring == "sigmoid", "moe_route: scoring ", scoring, ", must be softmax or sigmoid");
  const at::Tensor logits = router_logits.to(at::kFloat).contiguous();
  at::Tensor weights = at::empty({num_rows, top_k}, logits.options());
  at::Tensor ids = at::empty({num_rows, top_k}, logits.options().dtype(at::kLong));
  std::vector<float> scores(num_experts);
  for (int64_t row = 0; row < num_rows; ++row) {
    std::copy_n(logits.const_data_ptr<float>() + row * num_experts, num_experts, scores.begin());
    (scoring == "softmax" ? softmax : sigmoid)(scores.data(), num_experts);
    float* row_weights = weights.mutable_data_ptr<float>() + row * top_k;
    choose(scores.data(), num_experts, top_k, row_weights, ids.mutable_data_ptr<int64_t>() + row * top_k);
    if (normalise) renormalise(row_weights, top_k);
  }
  return {weights, ids};
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) { library.impl("moe_route", moe_route); }

}  // namespace
}  // namespace pypto_serving
