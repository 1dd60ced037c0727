// quantize_int8, quantize_int4: weights to levels; pack_int8, pack_int4: levels to panels. What a model is loaded with, in one pass each.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "pack.h"
#include "quantized.h"

namespace pypto_serving {
namespace {

constexpr float kRound = 12582912.0f;      // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
constexpr float kLeastScale = 1e-30f;      // of weights that are zero
constexpr int64_t kTile = 64;              // depth of 8-bit panels is a multiple of what an AMX tile holds
constexpr int64_t kWord = 4;               // levels in a word
constexpr int64_t kGrain = int64_t{1} << 18;  // weights that are worth a thread

inline Ints nearest(Floats x) { return reinterpret_cast<Ints>(x + kRound) - 0x4b400000; }

inline void store_bytes(void* to, Ints levels, int64_t count) {
  const Bytes bytes = __builtin_convertvector(levels, Bytes);
  std::memcpy(to, &bytes, std::min(kLanes, count));
}

int64_t rows_of_grain(int64_t depth) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, depth)); }

std::tuple<at::Tensor, at::Tensor> quantize_int8(const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous(), "quantize_int8: weight must be contiguous, [N, K]");
  const int64_t depth = weight.size(1);
  at::Tensor levels = at::empty(weight.sizes(), weight.options().dtype(at::kChar));
  at::Tensor scales = at::empty({weight.size(0)}, weight.options().dtype(at::kFloat));
  with_element_type(weight, "quantize_int8", [&](auto element) {
    const auto* from = weight.const_data_ptr<decltype(element)>();
    at::parallel_for(0, weight.size(0), rows_of_grain(depth), [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const float scale = std::max(largest(from + row * depth, depth) / kLevels, kLeastScale);
        scales.mutable_data_ptr<float>()[row] = scale;
        for (int64_t k = 0; k < depth; k += kLanes)
          store_bytes(levels.mutable_data_ptr<int8_t>() + row * depth + k,
                      nearest(load(from + row * depth + k, depth - k) / scale), depth - k);
      }
    });
  });
  return {levels, scales};
}

template <typename T>
std::pair<float, float> range(const T* from, int64_t count) {
  Floats low = {}, high = {};
  for (int64_t k = 0; k < count; k += kLanes) {
    const Floats x = load(from + k, count - k);
    low = x < low ? x : low, high = x > high ? x : high;
  }
  float least = 0.0f, most = 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) least = std::min(least, low[lane]), most = std::max(most, high[lane]);
  return {least, most};
}

template <typename T>
void quantize_group(const T* from, int64_t count, uint8_t* levels, c10::BFloat16* scale, uint8_t* zero) {
  const auto [low, high] = range(from, count);
  *scale = c10::BFloat16(std::max((high - low) / 15.0f, kLeastScale));
  const float step = *scale;
  const Floats origin = at_most(at_least(__builtin_convertvector(nearest(broadcast(-low / step)), Floats), 0.0f), 15.0f);
  *zero = static_cast<uint8_t>(origin[0]);
  for (int64_t k = 0; k < count; k += kLanes) {
    const Floats level = at_most(at_least(load(from + k, count - k) / step + origin, 0.0f), 15.0f);
    store_bytes(levels + k, nearest(level), count - k);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_int4(const at::Tensor& weight, int64_t group) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous() && weight.size(1) % group == 0, 
              "quantize_int4: weight must be contiguous, [N, K], of whole groups");
  const int64_t depth = weight.size(1), groups = depth / group;
  at::Tensor levels = at::empty(weight.sizes(), weight.options().dtype(at::kByte));
  at::Tensor scales = at::empty({weight.size(0), groups}, weight.options().dtype(at::kBFloat16));
  at::Tensor zeros = at::empty({weight.size(0), groups}, weight.options().dtype(at::kByte));
  with_element_type(weight, "quantize_int4", [&](auto element) {
    const auto* from = weight.const_data_ptr<decltype(element)>();
    at::parallel_for(0, weight.size(0) * groups, rows_of_grain(group), [&](int64_t place, int64_t end) {
      for (; place < end; ++place)
        quantize_group(from + place * group, group, levels.mutable_data_ptr<uint8_t>() + place * group,
                       scales.mutable_data_ptr<c10::BFloat16>() + place, zeros.mutable_data_ptr<uint8_t>() + place);
    });
  });
  return {levels, scales, zeros};
}

std::tuple<at::Tensor, at::Tensor> pack_int8(const at::Tensor& levels) {
  TORCH_CHECK(levels.dim() == 2 && levels.is_contiguous() && levels.scalar_type() == at::kChar,
              "pack_int8: levels must be contiguous int8, [N, K]");
  const int64_t count = levels.size(0), depth = levels.size(1), padded = (depth + kTile - 1) / kTile * kTile;
  const int64_t num_panels = (count + kPanel - 1) / kPanel;
  at::Tensor panels = allocate_panels({num_panels, padded / kWord, kPanel, kWord}, levels.options());
  at::Tensor offsets = at::empty({num_panels * kPanel}, levels.options().dtype(at::kInt));
  at::parallel_for(0, num_panels, rows_of_grain(depth * kPanel), [&](int64_t panel, int64_t end) {
    for (; panel < end; ++panel) {
      const int8_t* from = levels.const_data_ptr<int8_t>() + panel * kPanel * depth;
      auto* to = reinterpret_cast<uint8_t*>(panels.mutable_data_ptr<int8_t>() + panel * kPanel * padded);
      lay_side_by_side(padded / kWord, to, [&](int64_t row, int64_t word) {
        return load_first(from + row * depth + word * kWord, panel * kPanel + row < count ? depth - word * kWord : 0);
      });
      Ints sums[kVectors] = {};
      for (int64_t word = 0; word < padded / kWord; ++word)
        for (int64_t v = 0; v < kVectors; ++v)
          sums[v] = add_products(sums[v], reinterpret_cast<Ints>(Words{} + 0x80808080u),
                                 load_bytes(to + (word * kVectors + v) * sizeof(Ints)));
      std::memcpy(offsets.mutable_data_ptr<int32_t>() + panel * kPanel, sums, sizeof(sums));
    }
  });
  return {panels, offsets};
}

at::Tensor pack_int4(const at::Tensor& levels) {
  TORCH_CHECK(levels.dim() == 2 && levels.is_contiguous() && levels.scalar_type() == at::kByte && levels.size(1) % (2 * kWord) == 0,
              "pack_int4: levels must be contiguous uint8, [N, K] with K % 8 == 0");
  const int64_t count = levels.size(0), depth = levels.size(1), words = depth / (2 * kWord), num_panels = (count + kPanel - 1) / kPanel;
  at::Tensor panels = allocate_panels({num_panels, words, kPanel, kWord}, levels.options());
  at::parallel_for(0, num_panels, rows_of_grain(depth * kPanel), [&](int64_t panel, int64_t end) {
    for (; panel < end; ++panel) {
      const uint8_t* from = levels.const_data_ptr<uint8_t>() + panel * kPanel * depth;
      lay_side_by_side(words, panels.mutable_data_ptr<uint8_t>() + panel * kPanel * depth / 2, [&](int64_t row, int64_t word) {
        uint32_t halves[kLanes] = {};
        for (int64_t i = 0; panel * kPanel + row < count && i < std::min(kLanes, words - word); ++i) {
          uint64_t eight;
          std::memcpy(&eight, from + row * depth + (word + i) * 2 * kWord, sizeof(eight));
          halves[i] = static_cast<uint32_t>(eight) | static_cast<uint32_t>(eight >> 32) << 4;
        }
        return load_first(halves, sizeof(halves));
      });
    }
  });
  return panels;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("quantize_int8", quantize_int8);
  library.impl("quantize_int4", quantize_int4);
  library.impl("pack_int8", pack_int8);
  library.impl("pack_int4", pack_int4);
}

}  // namespace
}  // namespace pypto_serving
