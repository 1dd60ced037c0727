// int8_linear and int8_embedding: weights of 8 bits with one scale per output, rows quantized to 8 bits as they come.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "quantized_rows.h"

namespace pypto_serving {
namespace {

constexpr int32_t kZero = 128;  // the instructions take unsigned bytes on one side: rows are stored with this zero point
constexpr int64_t kQuad = 4;
constexpr int64_t kVectors = kBlock / kLanes;

struct Weights {
  const int8_t* packed;    // [blocks, depth / 4, 32, 4]
  const float* scales;     // [N]
  const int32_t* offsets;  // [blocks * 32]: 128 times the sum of an output's weights
  int64_t depth, width;

  const int8_t* block(int64_t index) const { return packed + index * kBlock * depth; }
};

// The sums of R rows over B adjoining blocks, before the zero point is taken out.
template <int R, int B>
void multiply(const uint8_t* rows, const int8_t* weights, int64_t depth, Ints (&result)[R][B * kVectors]) {
  Ints sums[R][B * kVectors] = {};  // a local array stays in registers
  for (int64_t k = 0; k < depth; k += kQuad) {
    Ints columns[B * kVectors];
    for (int v = 0; v < B * kVectors; ++v)
      columns[v] = load_bytes(weights + v / kVectors * kBlock * depth + k * kBlock + v % kVectors * sizeof(Ints));
    for (int r = 0; r < R; ++r) {
      const Ints quad = broadcast_quad(rows + r * depth + k);
      for (int v = 0; v < B * kVectors; ++v) sums[r][v] = add_products(sums[r][v], quad, columns[v]);
    }
  }
  std::memcpy(result, sums, sizeof(sums));
}

template <typename T, int R, int B>
void multiply_block(const uint8_t* rows, const float* scales, const Weights& weights, int64_t block, const T* bias, T* out) {
  Ints sums[R][B * kVectors];
  multiply<R, B>(rows, weights.block(block), weights.depth, sums);
  for (int v = 0; v < B * kVectors; ++v) {
    const int64_t column = block * kBlock + v * kLanes, count = weights.width - column;
    if (count <= 0) return;
    const Floats scale = load(weights.scales + column, count), shift = bias ? load(bias + column, count) : Floats{};
    const Ints offset = load_bytes(weights.offsets + column);
    for (int r = 0; r < R; ++r)
      store(out + r * weights.width + column, to_floats(sums[r][v] - offset) * scales[r] * scale + shift, count);
  }
}

template <typename T, int B>
void multiply_rows(const uint8_t* rows, const float* scales, int64_t count, const Weights& weights, int64_t block, const T* bias, T* out) {
  const auto next = [&]<int R>(std::integral_constant<int, R>) {
    multiply_block<T, R, B>(rows, scales, weights, block, bias, out);
    rows += R * weights.depth, scales += R, out += R * weights.width, count -= R;
  };
  while (count >= 6) next(std::integral_constant<int, 6>{});
  if (count >= 4) next(std::integral_constant<int, 4>{});
  if (count >= 2) next(std::integral_constant<int, 2>{});
  if (count) next(std::integral_constant<int, 1>{});
}

at::Tensor int8_linear(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& scales, const at::Tensor& offsets,
                       const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1 && packed.dim() == 4 && packed.is_contiguous(), "int8_linear: x [T, K], packed weights");
  const int64_t num_rows = x.size(0), width = scales.size(0), depth = packed.size(1) * kQuad, blocks = packed.size(0);
  TORCH_CHECK((x.size(1) + 3) / 4 == packed.size(1) && (width + kBlock - 1) / kBlock == blocks, "int8_linear: x has ", x.size(1), " columns and there are ",
              width, " scales for packed weights ", packed.sizes());
  const Weights weights{packed.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(), offsets.const_data_ptr<int32_t>(), depth, width};
  at::Tensor out = at::empty({num_rows, width}, x.options());
  at::Tensor bytes = at::empty({num_rows, depth}, x.options().dtype(at::kByte));
  at::Tensor row_scales = at::empty({num_rows}, x.options().dtype(at::kFloat));
  auto* levels = bytes.mutable_data_ptr<uint8_t>();
  auto* steps = row_scales.mutable_data_ptr<float>();
  with_element_type(x, "int8_linear", [&](auto element) {
    using T = decltype(element);
    const T* from = x.const_data_ptr<T>();
    const T* shift = bias ? bias->const_data_ptr<T>() : nullptr;
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, num_rows, rows_per_task(depth), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        steps[row] = quantize(from + row * x.stride(0), x.size(1), depth, kZero, levels + row * depth);
    });
    at::parallel_for(0, blocks, 1, [&](int64_t block, int64_t end) {
      for (; block + 2 <= end; block += 2) multiply_rows<T, 2>(levels, steps, num_rows, weights, block, shift, to);
      if (block < end) multiply_rows<T, 1>(levels, steps, num_rows, weights, block, shift, to);
    });
  });
  return out;
}

template <typename T>
void unpack_row(const int8_t* packed, int64_t id, float scale, int64_t depth, int64_t width, T* out) {
  const int8_t* column = packed + id / kBlock * kBlock * depth + id % kBlock * kQuad;
  for (int64_t k = 0; k < width; ++k) out[k] = static_cast<T>(scale * column[k / kQuad * kQuad * kBlock + k % kQuad]);
}

at::Tensor int8_embedding(const at::Tensor& ids, const at::Tensor& packed, const at::Tensor& scales, int64_t width, at::ScalarType dtype) {
  TORCH_CHECK(packed.dim() == 4 && packed.is_contiguous() && ids.is_contiguous(), "int8_embedding: packed weights, contiguous ids");
  at::Tensor out = at::empty({ids.size(0), width}, packed.options().dtype(dtype));
  with_element_type(out, "int8_embedding", [&](auto element) {
    using T = decltype(element);
    for (int64_t row = 0; row < ids.size(0); ++row) {
      const int64_t id = ids.const_data_ptr<int64_t>()[row];
      TORCH_CHECK_INDEX(id >= 0 && id < scales.size(0), "int8_embedding: id ", id, " of ", scales.size(0));
      unpack_row(packed.const_data_ptr<int8_t>(), id, scales.const_data_ptr<float>()[id], packed.size(1) * kQuad, width,
                 out.mutable_data_ptr<T>() + row * width);
    }
  });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("int8_linear", int8_linear);
  library.impl("int8_embedding", int8_embedding);
}

}  // namespace
}  // namespace pypto_serving
