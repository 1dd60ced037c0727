// int8_linear and int8_embedding: weights of 8 bits with one scale per output, rows quantized to 8 bits as they come.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "linear.h"
#include "quantized.h"

namespace pypto_serving {
namespace {

constexpr int32_t kZero = 128;  // the instructions take unsigned bytes on one side: rows are stored with this zero point
constexpr int64_t kQuad = 4;
constexpr int64_t kTileRows = 16;  // fewer do not fill an AMX tile

struct Rows {
  const uint8_t* levels;  // [T, depth]
  const float* scales;    // [T]
  int64_t count;

  Rows after(int64_t rows, int64_t depth) const { return {levels + rows * depth, scales + rows, count - rows}; }
};

struct Weights {
  const int8_t* panels;    // [P, depth / 4, 32, 4]
  const float* scales;     // [N]
  const int32_t* offsets;  // [P * 32]: 128 times the sum of an output's weights
  const float* bias;       // [N] or null
  int64_t depth, width;

  const int8_t* panel(int64_t index) const { return panels + index * kPanel * depth; }
};

// Sixteen outputs of R rows from their sums, which are `stride` vectors apart.
template <typename Out>
void store_outputs(const Ints* sums, int64_t stride, const Rows& rows, int64_t count, const Weights& weights, int64_t column, Out* out) {
  const int64_t present = weights.width - column;
  if (present <= 0) return;
  const Floats scale = load(weights.scales + column, present), bias = weights.bias ? load(weights.bias + column, present) : Floats{};
  const Ints offset = load_bytes(weights.offsets + column);
  for (int64_t row = 0; row < count; ++row)
    store(out + row * weights.width + column, to_floats(sums[row * stride] - offset) * rows.scales[row] * scale + bias, present);
}

// R rows and B adjoining panels.
template <int R, int B, typename Out>
void multiply_block(const Rows& rows, const Weights& weights, int64_t panel, Out* out) {
  constexpr int V = B * kVectors;
  const int64_t depth = weights.depth;
  const int8_t* first = weights.panel(panel);
  Ints sums[R][V] = {};
  for (int64_t k = 0; k < depth; k += kQuad) {
    Ints columns[V];
    for (int v = 0; v < V; ++v) columns[v] = load_bytes(first + v / kVectors * kPanel * depth + k * kPanel + v % kVectors * sizeof(Ints));
    for (int r = 0; r < R; ++r) {
      const Ints quad = broadcast_quad(rows.levels + r * depth + k);
      for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], quad, columns[v]);
    }
  }
  for (int v = 0; v < V; ++v) {
    Ints column[R];
    for (int r = 0; r < R; ++r) column[r] = sums[r][v];
    store_outputs(column, 1, rows, R, weights, panel * kPanel + v * kLanes, out);
  }
}

template <int B, typename Out>
void multiply_loops(Rows rows, const Weights& weights, int64_t panel, Out* out) {
  const auto next = [&]<int R>(std::integral_constant<int, R>) {
    multiply_block<R, B>(rows, weights, panel, out);
    rows = rows.after(R, weights.depth), out += R * weights.width;
  };
  while (rows.count >= 6) next(std::integral_constant<int, 6>{});
  if (rows.count >= 4) next(std::integral_constant<int, 4>{});
  if (rows.count >= 2) next(std::integral_constant<int, 2>{});
  if (rows.count) next(std::integral_constant<int, 1>{});
}

template <typename Out>
void multiply_brgemm(Rows rows, const Weights& weights, int64_t panel, Out* out) {
  Ints sums[kRowBlock * kVectors];
  for (; rows.count > 0; rows = rows.after(kRowBlock, weights.depth), out += kRowBlock * weights.width) {
    const int64_t count = std::min(kRowBlock, rows.count);
    at::native::cpublas::brgemm(count, kPanel, weights.depth, weights.depth, kPanel, kPanel, false, rows.levels,
                                reinterpret_cast<const signed char*>(weights.panel(panel)), reinterpret_cast<int32_t*>(sums), true);
    for (int v = 0; v < kVectors; ++v) store_outputs(sums + v, kVectors, rows, count, weights, panel * kPanel + v * kLanes, out);
  }
}

// Sums are exact: how they are computed changes no bit.
template <typename Out>
void multiply(const Rows& rows, const Weights& weights, int64_t num_panels, bool brgemm, Out* out) {
  at::parallel_for(0, num_panels, panel_grain(weights.depth), [&](int64_t panel, int64_t end) {
    if (brgemm && rows.count >= kTileRows) {
      for (; panel < end; ++panel) multiply_brgemm(rows, weights, panel, out);
      at::native::cpublas::brgemm_release(true);
    }
    for (; panel + 2 <= end; panel += 2) multiply_loops<2>(rows, weights, panel, out);
    if (panel < end) multiply_loops<1>(rows, weights, panel, out);
  });
}

// x [T, K], panels [P, K' / 4, 32, 4], scales and bias [N], offsets [P * 32] -> [T, N] of type `dtype`; see kernels.ops.
at::Tensor int8_linear(const at::Tensor& x, const at::Tensor& panels, const at::Tensor& scales, const at::Tensor& offsets,
                       const std::optional<at::Tensor>& bias, at::ScalarType dtype, bool brgemm) {
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1 && panels.dim() == 4 && panels.is_contiguous(),
              "int8_linear: x must be [T, K], weights packed");
  const int64_t num_rows = x.size(0), width = scales.size(0), depth = panels.size(1) * kQuad, num_panels = panels.size(0);
  TORCH_CHECK(x.size(1) <= depth && depth < x.size(1) + 64 && (width + kPanel - 1) / kPanel == num_panels, "int8_linear: x of ", x.size(1),
              " columns and ", width, " scales for packed weights ", panels.sizes());
  const Weights weights{panels.const_data_ptr<int8_t>(),    scales.const_data_ptr<float>(), offsets.const_data_ptr<int32_t>(),
                        bias ? bias->const_data_ptr<float>() : nullptr, depth,              width};
  at::Tensor out = at::empty({num_rows, width}, x.options().dtype(dtype));
  at::Tensor levels = at::empty({num_rows, depth}, x.options().dtype(at::kByte));
  at::Tensor row_scales = at::empty({num_rows}, x.options().dtype(at::kFloat));
  with_element_type(x, "int8_linear", [&](auto element) {
    const auto* from = x.const_data_ptr<decltype(element)>();
    at::parallel_for(0, num_rows, rows_per_task(depth), [&](int64_t row, int64_t end) {
      for (; row < end; ++row)
        row_scales.mutable_data_ptr<float>()[row] =
            quantize(from + row * x.stride(0), x.size(1), depth, kZero, levels.mutable_data_ptr<uint8_t>() + row * depth);
    });
  });
  const Rows rows{levels.const_data_ptr<uint8_t>(), row_scales.const_data_ptr<float>(), num_rows};
  with_element_type(out, "int8_linear", [&](auto element) {
    multiply(rows, weights, num_panels, brgemm && has_brgemm(), out.mutable_data_ptr<decltype(element)>());
  });
  return out;
}

template <typename T>
void unpack_row(const int8_t* panels, int64_t id, float scale, int64_t depth, int64_t width, T* out) {
  const int8_t* column = panels + id / kPanel * kPanel * depth + id % kPanel * kQuad;
  for (int64_t k = 0; k < width; ++k) out[k] = static_cast<T>(scale * column[k / kQuad * kQuad * kPanel + k % kQuad]);
}

at::Tensor int8_embedding(const at::Tensor& ids, const at::Tensor& panels, const at::Tensor& scales, int64_t width, at::ScalarType dtype) {
  TORCH_CHECK(panels.dim() == 4 && panels.is_contiguous() && ids.is_contiguous(), "int8_embedding: weights must be packed, ids contiguous");
  at::Tensor out = at::empty({ids.size(0), width}, panels.options().dtype(dtype));
  with_element_type(out, "int8_embedding", [&](auto element) {
    using T = decltype(element);
    at::parallel_for(0, ids.size(0), rows_per_task(width), [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const int64_t id = ids.const_data_ptr<int64_t>()[row];
        TORCH_CHECK_INDEX(id >= 0 && id < scales.size(0), "int8_embedding: id ", id, " of ", scales.size(0));
        unpack_row(panels.const_data_ptr<int8_t>(), id, scales.const_data_ptr<float>()[id], panels.size(1) * kQuad, width,
                   out.mutable_data_ptr<T>() + row * width);
      }
    });
  });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("int8_linear", int8_linear);
  library.impl("int8_embedding", int8_embedding);
}

}  // namespace
}  // namespace pypto_serving
