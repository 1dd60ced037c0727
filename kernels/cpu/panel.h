// Weights in panels: how they lie, and the product of a few rows with one panel.
//
// A panel holds 32 outputs: words of four bytes, [depth / kPerWord][32 outputs][kPerWord], so that brgemm finds pairs of 16-bit elements
// side by side (VNNI) and a vector of words widens to one or two vectors of fp32. Depth is padded with zeros to whole AMX tiles.
#pragma once

#include <type_traits>

#include "brgemm.h"
#include "multiply.h"

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

// What rows have to be for a panel of T: pairs stay as they are where the CPU multiplies them, the others are widened beforehand.
template <typename T>
using RowElement = std::conditional_t<kPaired<T>, T, float>;

// Bytes ahead at which a panel is prefetched: while a core multiplies several rows with a word, its own reordering reaches too few of the
// next words to hide the memory's latency.
constexpr int64_t kAhead = 4096;

// sums[R][kPanel], columns 0 .. V vectors of them: each adds its products in order of depth.
template <int R, int V, typename T>
void multiply_columns(const RowElement<T>* x, int64_t stride, const T* panel, int64_t depth, float* sums) {
  constexpr int64_t kPer = kPanelPerWord<T>, kParts = kPaired<T> ? 1 : kPer;
  NativeFloats totals[R][V] = {};
  for (int64_t d = 0; d < depth; d += kPer) {
    const char* words_of_depth = reinterpret_cast<const char*>(panel + d * kPanel);
    for (int64_t line = 0; line < V * kNative * 4; line += 64) __builtin_prefetch(words_of_depth + kAhead + line);
    NativeFloats parts[V][kParts];
    for (int v = 0; v < V; ++v) {
      NativeWords words;
      std::memcpy(&words, panel + (d / kPer * kPanel + v * kNative) * kPer, sizeof(words));
      if constexpr (kPaired<T>) parts[v][0] = as_floats(words);
      else widen_words<T>(words, parts[v]);
    }
    for (int64_t part = 0; part < kParts; ++part)
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) {
          const auto* element = x + r * stride + d + part;
          if constexpr (kPaired<T>) totals[r][v] = add_product<T>(totals[r][v], broadcast_word(element), parts[v][0]);
          else totals[r][v] += *element * parts[v][part];
        }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) std::memcpy(sums + r * kPanel + v * kNative, &totals[r][v], sizeof(NativeFloats));
}

template <int R, typename T>
void multiply_rows(const RowElement<T>* x, int64_t stride, const T* panel, int64_t depth, float* sums) {
  constexpr int V = R == 1 ? kPanel / kNative : 2;
  for (int64_t column = 0; column < kPanel; column += V * kNative)
    multiply_columns<R, V>(x, stride, panel + column * kPanelPerWord<T>, depth, sums + column);
}

// Up to R rows.
template <int R, typename T>
void multiply_rest(const RowElement<T>* x, int64_t stride, int64_t rows, const T* panel, int64_t depth, float* sums) {
  if constexpr (R > 0) {
    if (rows == R) multiply_rows<R>(x, stride, panel, depth, sums);
    else multiply_rest<R - 1>(x, stride, rows, panel, depth, sums);
  }
}

// How a few rows are multiplied with a panel: sums[rows][kPanel] = x[rows][depth] * panel. Input is what the rows have to be.
template <typename T>
struct Loops {
  using Input = RowElement<T>;

  static void multiply(const Input* x, int64_t stride, int64_t rows, const T* panel, int64_t depth, float* sums) {
    for (; rows >= kLoopRows; rows -= kLoopRows, x += kLoopRows * stride, sums += kLoopRows * kPanel)
      multiply_rows<kLoopRows>(x, stride, panel, depth, sums);
    multiply_rest<kLoopRows - 1>(x, stride, rows, panel, depth, sums);
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
