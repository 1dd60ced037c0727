// Products of many rows with many panels: how they are cut into blocks for caches and threads. No bit depends on the cutting.
#pragma once

#include <ATen/ops/constant_pad_nd.h>

#include "dispatch.h"
#include "panel.h"

namespace pypto_serving {

// Calls body(T{}) with the element type of a weight.
template <typename Body>
void with_weight_type(const at::Tensor& tensor, const char* op, Body body) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return body(float{});
    case at::kBFloat16: return body(c10::BFloat16{});
    case at::kHalf: return body(c10::Half{});
    default: TORCH_CHECK(false, op, ": element type ", tensor.scalar_type(), ", must be float32, bfloat16 or float16");
  }
}

// Calls body(Method{}) with the way of multiplying.
template <typename T, typename Body>
void with_method(bool brgemm, const char* op, Body body) {
  if (!brgemm) return body(Loops<T>{});
  TORCH_CHECK(has_brgemm(), op, ": this torch has no brgemm");
  body(Brgemm<T>{});
}

// Rows as a method reads them: contiguous, of type Input, and as deep as the panels.
template <typename Input>
at::Tensor readable_rows(const at::Tensor& x, int64_t depth) {
  at::Tensor rows = x.to(c10::CppTypeToScalarType<Input>::value);
  return x.size(1) == depth ? rows.contiguous() : at::constant_pad_nd(rows, {0, depth - x.size(1)});
}

// Panels that stay in L2 while blocks of rows pass.
inline int64_t panels_per_group(int64_t panel_bytes) { return std::clamp<int64_t>((int64_t{512} << 10) / panel_bytes, 1, 8); }

// Panels per task: a thread is not worth waking for less than about 64 K elements of weights.
inline int64_t panel_grain(int64_t depth) { return std::max<int64_t>(1, 65536 / (kPanel * std::max<int64_t>(1, depth))); }

// Calls store(row, count, panel, sums [count][kPanel]) for all blocks of `num_rows` rows and the panels first .. last - 1.
template <typename Method, typename T, typename Store>
void multiply_panels(const typename Method::Input* x, int64_t num_rows, const T* panels, int64_t depth, int64_t first, int64_t last,
                     Store store) {
  alignas(64) float sums[kRowBlock * kPanel];
  const int64_t group = panels_per_group(kPanel * depth * static_cast<int64_t>(sizeof(T)));
  for (; first < last; first += group)
    for (int64_t row = 0; row < num_rows; row += kRowBlock) {
      const int64_t count = std::min(kRowBlock, num_rows - row);
      for (int64_t panel = first; panel < std::min(first + group, last); ++panel) {
        Method::multiply(x + row * depth, depth, count, panels + panel * kPanel * depth, depth, sums);
        store(row, count, panel, sums);
      }
    }
}

// Pieces that many rows are cut into, so that threads get about the same: none idles for more than a twentieth of the time.
inline int64_t row_pieces(int64_t num_rows, int64_t num_panels) {
  const int64_t threads = at::get_num_threads();
  const auto is_uneven = [&](int64_t tasks) { return (tasks + threads - 1) / threads * threads * 20 > tasks * 21; };
  int64_t pieces = 1;
  while (pieces < num_rows / 64 && is_uneven(pieces * num_panels)) ++pieces;
  return pieces;
}

// multiply_panels for all panels, by all threads: each has contiguous panels, for few rows always the same ones.
template <typename Method, typename T, typename Store>
void multiply_all(const typename Method::Input* x, int64_t num_rows, const T* panels, int64_t depth, int64_t num_panels, Store store) {
  const int64_t pieces = row_pieces(num_rows, num_panels), piece = (num_rows + pieces - 1) / pieces;
  at::parallel_for(0, pieces * num_panels, panel_grain(depth), [&](int64_t task, int64_t end) {
    while (task < end) {
      const int64_t row = task / num_panels * piece, first = task % num_panels, last = std::min(num_panels, first + end - task);
      const int64_t count = std::min(piece, num_rows - row);
      multiply_panels<Method>(x + row * depth, count, panels, depth, first, last,
                              [&](int64_t block, int64_t rows, int64_t panel, const float* sums) { store(row + block, rows, panel, sums); });
      task += last - first;
    }
    Method::release();
  });
}

// Panel p of a gate-up weight holds 16 gates and their 16 ups: puts 16 activations a row into `out` [.., width]. Gates and ups are
// rounded to T first, so that the bits are those of linear and swiglu one after the other.
template <typename T>
void store_gated(const float* sums, int64_t count, int64_t panel, const Floats (&bias)[2], T* out, int64_t width) {
  const int64_t column = panel * kLanes;
  for (int64_t row = 0; row < count; ++row) {
    const Floats gate = load(sums + row * kPanel) + bias[0], up = load(sums + row * kPanel + kLanes) + bias[1];
    store(out + row * width + column, gated<T>(rounded_to<T>(gate), rounded_to<T>(up)), width - column);
  }
}

template <typename Out>
void store_sums(const float* sums, int64_t count, int64_t panel, const Floats (&bias)[2], Out* out, int64_t width) {
  const int64_t column = panel * kPanel, left = width - column;
  for (int64_t row = 0; row < count; ++row) {
    Out* to = out + row * width + column;
    store(to, load(sums + row * kPanel) + bias[0], left);
    if (left > kLanes) store(to + kLanes, load(sums + row * kPanel + kLanes) + bias[1], left - kLanes);
  }
}

}  // namespace pypto_serving
