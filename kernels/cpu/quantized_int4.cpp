// int4_linear: weights of 4 bits with a scale, and perhaps a zero point, for every group of inputs; rows are quantized to 8 bits by the
// same groups. Sums within a group are integers; the groups are added in fp32 in their order.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "linear.h"
#include "quantized.h"

namespace pypto_serving {
namespace {

constexpr int64_t kInputs = 8;  // inputs of an output in four bytes: the first four in the low halves, the others in the high ones
constexpr int32_t kMiddle = 8;  // the zero point of symmetric weights

struct Rows {
  const uint8_t* levels;  // [T, depth]
  const float* scales;    // [T, groups]
  const int32_t* sums;    // [T, groups]: of the levels
};

template <typename Scale>
struct Weights {
  const uint8_t* panels;  // [P, depth / 8, 32, 4]
  const Scale* scales;    // [P, groups, 32]
  const uint8_t* zeros;   // the same, or null: 8 everywhere
  const float* bias;      // [N] or null
  int64_t depth, groups, width;
};

inline Ints load_zeros(const uint8_t* from) {
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(bytes, Ints);
}

// The products of R rows with a group of a panel. Sums begin with what takes the zero points out.
template <int R>
[[gnu::always_inline]] inline void multiply_group(const uint8_t* levels, int64_t depth, const uint8_t* packed, int64_t inputs,
                                                  Ints (&sums)[R][kVectors]) {
  for (int64_t k = 0; k < inputs; k += kInputs)
    for (int v = 0; v < kVectors; ++v) {
      const Ints halves = load_bytes(packed + k / kInputs * kPanel * 4 + v * sizeof(Ints));
      const Ints low = halves & 0x0f0f0f0f, high = halves >> 4 & 0x0f0f0f0f;
      for (int r = 0; r < R; ++r) {
        const uint8_t* row = levels + r * depth + k;
        sums[r][v] = add_products(sums[r][v], low, broadcast_quad(row));
        sums[r][v] = add_products(sums[r][v], high, broadcast_quad(row + 4));
      }
    }
}

template <int R, typename Scale, typename Out>
void multiply_block(const Rows& rows, const Weights<Scale>& weights, int64_t panel, Out* out) {
  Floats totals[R][kVectors] = {};
  const int64_t groups = weights.groups, inputs = weights.depth / groups;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = (panel * groups + group) * kPanel;
    Ints sums[R][kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const Ints zeros = weights.zeros ? load_zeros(weights.zeros + first + v * kLanes) : Ints{} + kMiddle;
      for (int r = 0; r < R; ++r) sums[r][v] = zeros * -rows.sums[r * groups + group];
    }
    multiply_group<R>(rows.levels + group * inputs, weights.depth, weights.panels + first * inputs / 2, inputs, sums);
    for (int v = 0; v < kVectors; ++v) {
      const Floats scale = load(weights.scales + first + v * kLanes);
      for (int r = 0; r < R; ++r) totals[r][v] += to_floats(sums[r][v]) * rows.scales[r * groups + group] * scale;
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = panel * kPanel + v * kLanes, present = weights.width - column;
    if (present <= 0) return;
    const Floats bias = weights.bias ? load(weights.bias + column, present) : Floats{};
    for (int r = 0; r < R; ++r) store(out + r * weights.width + column, totals[r][v] + bias, present);
  }
}

template <typename Scale, typename Out>
void multiply_rows(Rows rows, int64_t count, const Weights<Scale>& weights, int64_t panel, Out* out) {
  const auto next = [&]<int R>(std::integral_constant<int, R>) {
    multiply_block<R>(rows, weights, panel, out);
    rows.levels += R * weights.depth, rows.scales += R * weights.groups, rows.sums += R * weights.groups;
    out += R * weights.width, count -= R;
  };
  while (count >= 4) next(std::integral_constant<int, 4>{});
  if (count >= 2) next(std::integral_constant<int, 2>{});
  if (count) next(std::integral_constant<int, 1>{});
}

template <typename T>
void quantize_groups(const T* row, int64_t depth, int64_t inputs, uint8_t* levels, float* scales, int32_t* sums) {
  for (int64_t group = 0; group < depth / inputs; ++group) {
    uint8_t* to = levels + group * inputs;
    scales[group] = quantize(row + group * inputs, inputs, inputs, 0, to);
    sums[group] = 0;
    for (int64_t i = 0; i < inputs; ++i) sums[group] += static_cast<int8_t>(to[i]);
  }
}

// x [T, K], panels [P, K / 8, 32, 4], scales and zeros [P, groups, 32], bias [N] -> [T, N = width] of type `dtype`; see kernels.ops.
at::Tensor int4_linear(const at::Tensor& x, const at::Tensor& panels, const at::Tensor& scales, const std::optional<at::Tensor>& zeros,
                       const std::optional<at::Tensor>& bias, int64_t width, at::ScalarType dtype) {
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1 && panels.dim() == 4 && panels.is_contiguous() && scales.is_contiguous(),
              "int4_linear: x must be [T, K], weights packed");
  const int64_t num_rows = x.size(0), depth = x.size(1), groups = scales.size(1), num_panels = panels.size(0);
  TORCH_CHECK(depth == panels.size(1) * kInputs && depth % (groups * kInputs) == 0 && (width + kPanel - 1) / kPanel == num_panels,
              "int4_linear: x of ", depth, " columns for packed weights ", panels.sizes(), " in ", groups, " groups");
  at::Tensor out = at::empty({num_rows, width}, x.options().dtype(dtype));
  at::Tensor levels = at::empty({num_rows, depth}, x.options().dtype(at::kByte));
  at::Tensor row_scales = at::empty({num_rows, groups}, x.options().dtype(at::kFloat));
  at::Tensor row_sums = at::empty({num_rows, groups}, x.options().dtype(at::kInt));
  with_element_type(x, "int4_linear", [&](auto element) {
    const auto* from = x.const_data_ptr<decltype(element)>();
    at::parallel_for(0, num_rows, rows_per_task(depth), [&](int64_t row, int64_t end) {
      for (; row < end; ++row)
        quantize_groups(from + row * x.stride(0), depth, depth / groups, levels.mutable_data_ptr<uint8_t>() + row * depth,
                        row_scales.mutable_data_ptr<float>() + row * groups, row_sums.mutable_data_ptr<int32_t>() + row * groups);
    });
  });
  const Rows rows{levels.const_data_ptr<uint8_t>(), row_scales.const_data_ptr<float>(), row_sums.const_data_ptr<int32_t>()};
  with_element_type(scales, "int4_linear", [&](auto scale) {
    using Scale = decltype(scale);
    const Weights<Scale> weights{panels.const_data_ptr<uint8_t>(), scales.const_data_ptr<Scale>(),
                                 zeros ? zeros->const_data_ptr<uint8_t>() : nullptr,
                                 bias ? bias->const_data_ptr<float>() : nullptr, depth, groups, width};
    with_element_type(out, "int4_linear", [&](auto element) {
      auto* to = out.mutable_data_ptr<decltype(element)>();
      at::parallel_for(0, num_panels, panel_grain(depth), [&](int64_t panel, int64_t end) {
        for (; panel < end; ++panel) multiply_rows(rows, num_rows, weights, panel, to);
      });
    });
  });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) { library.impl("int4_linear", int4_linear); }

}  // namespace
}  // namespace pypto_serving
