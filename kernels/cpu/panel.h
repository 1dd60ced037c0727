// Weights in panels: how they lie, and the product of a few rows with one panel.
//
// A panel holds 32 outputs: words of four bytes, [depth / kPerWord][32 outputs][kPerWord], so that brgemm finds pairs of 16-bit elements
// side by side (VNNI) and a vector of words widens to one or two vectors of fp32. Depth is padded with zeros to whole AMX tiles.
#pragma once

#include <type_traits>

#include "brgemm.h"
#include "vector.h"

namespace pypto_serving {

constexpr int64_t kPanel = 32;    // outputs of a panel
constexpr int64_t kRowBlock = 32;  // rows per product: two AMX tiles, and sums that stay in L1

template <typename T>
constexpr int64_t kPanelPerWord = static_cast<int64_t>(sizeof(float) / sizeof(T));

// Elements of depth that a panel is padded to.
template <typename T>
constexpr int64_t padded_depth(int64_t depth) { return sizeof(T) == 4 ? depth : (depth + 31) / 32 * 32; }

// The widest vectors of the instruction set: 16-lane ones would be cut in pieces that GCC moves through memory.
#if defined(__AVX512F__)
constexpr int64_t kNative = 16;
constexpr int kLoopRows = 12;
#elif defined(__AVX__)
constexpr int64_t kNative = 8;
constexpr int kLoopRows = 6;
#else
constexpr int64_t kNative = 4;
constexpr int kLoopRows = 6;
#endif
using NativeFloats = float __attribute__((vector_size(kNative * 4)));
using NativeWords = uint32_t __attribute__((vector_size(kNative * 4)));

inline NativeFloats as_floats(NativeWords words) { return reinterpret_cast<NativeFloats>(words); }

// The fp32 values of 16-bit elements in the low halves of words. 2^112 puts the exponent right, for subnormals too.
inline NativeFloats widen_half(NativeWords half) {
  const NativeWords magnitude = (half & 0x7fff) << 13, sign = (half & 0x8000) << 16;
  const NativeFloats finite = as_floats(magnitude) * 0x1p112f;
  const NativeWords bits = magnitude >= NativeWords{} + (0x7c00u << 13) ? magnitude | 0x7f800000 : reinterpret_cast<NativeWords>(finite);
  return as_floats(bits | sign);
}

template <typename T>
void widen_words(NativeWords words, NativeFloats (&parts)[kPanelPerWord<T>]) {
  if constexpr (sizeof(T) == 4) {
    parts[0] = as_floats(words);
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    parts[0] = as_floats(words << 16);
    parts[1] = as_floats(words & 0xffff0000u);
  } else {
    parts[0] = widen_half(words & 0xffff);
    parts[1] = widen_half(words >> 16);
  }
}

// sums[R][kPanel], columns 0 .. V vectors of them: each adds its products in order of depth.
template <int R, int V, typename T>
void multiply_columns(const float* x, int64_t stride, const T* panel, int64_t depth, float* sums) {
  constexpr int64_t kPer = kPanelPerWord<T>;
  NativeFloats totals[R][V] = {};
  for (int64_t d = 0; d < depth; d += kPer) {
    NativeFloats parts[V][kPer];
    for (int v = 0; v < V; ++v) {
      NativeWords words;
      std::memcpy(&words, panel + (d / kPer * kPanel + v * kNative) * kPer, sizeof(words));
      widen_words<T>(words, parts[v]);
    }
    for (int64_t part = 0; part < kPer; ++part)
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) totals[r][v] += x[r * stride + d + part] * parts[v][part];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) std::memcpy(sums + r * kPanel + v * kNative, &totals[r][v], sizeof(NativeFloats));
}

template <int R, typename T>
void multiply_rows(const float* x, int64_t stride, const T* panel, int64_t depth, float* sums) {
  constexpr int V = R == 1 ? kPanel / kNative : 2;
  for (int64_t column = 0; column < kPanel; column += V * kNative)
    multiply_columns<R, V>(x, stride, panel + column * kPanelPerWord<T>, depth, sums + column);
}

// How a few rows are multiplied with a panel: sums[rows][kPanel] = x[rows][depth] * panel. Input is what the rows have to be.
template <typename T>
struct Loops {
  using Input = float;

  static void multiply(const float* x, int64_t stride, int64_t rows, const T* panel, int64_t depth, float* sums) {
    for (; rows >= kLoopRows; rows -= kLoopRows, x += kLoopRows * stride, sums += kLoopRows * kPanel)
      multiply_rows<kLoopRows>(x, stride, panel, depth, sums);
    for (; rows >= 4; rows -= 4, x += 4 * stride, sums += 4 * kPanel) multiply_rows<4>(x, stride, panel, depth, sums);
    switch (rows) {
      case 3: return multiply_rows<3>(x, stride, panel, depth, sums);
      case 2: return multiply_rows<2>(x, stride, panel, depth, sums);
      case 1: return multiply_rows<1>(x, stride, panel, depth, sums);
    }
  }

  static void release() {}
};

// One call over the whole depth: under AVX-512 a sum that is cut has other bits.
template <typename T>
struct Brgemm {
  using Input = T;

  static void multiply(const T* x, int64_t stride, int64_t rows, const T* panel, int64_t depth, float* sums) {
    at::native::cpublas::brgemm(rows, kPanel, depth, stride, kPanel, kPanel, false, x, panel, sums, kPanelPerWord<T> > 1);
  }

  // Gives the thread's AMX tiles back.
  static void release() { at::native::cpublas::brgemm_release(kPanelPerWord<T> > 1); }
};

}  // namespace pypto_serving
