// Products of small matrices whose fp32 elements add up in order of depth, whatever block of rows they are computed in.
//
// Operands come in words of four bytes: one fp32 element, or, where the CPU multiplies them, two neighbours in depth in bf16.
#pragma once

#include <type_traits>

#include "vector.h"

namespace pypto_serving {

#ifdef __AVX512BF16__
// Whether operands of type T stay as they are, in pairs; otherwise they are widened to fp32.
template <typename T>
constexpr bool kPaired = std::is_same_v<T, c10::BFloat16>;
#else
template <typename T>
constexpr bool kPaired = false;
#endif

// Elements of depth in a word of an operand.
template <typename T>
constexpr int64_t kDepthPerWord = kPaired<T> ? 2 : 1;

// sums + a * b, lane by lane.
template <typename T>
inline Floats add_product(Floats sums, Floats a, Floats b) {
#ifdef __AVX512BF16__
  if constexpr (kPaired<T>)
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
#endif
  return sums + a * b;
}

// c[R][16 V] += a[R][depth] * b[depth][16 V], each element adding its products in order of depth; depth in words. `a` may come in
// parts that are to be added, one behind the other in each row. beside() is called for every word of depth: for what may overlap.
template <typename T, int Parts, int R, int V, typename Beside>
void multiply_add_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t depth,
                        Beside& beside) {
  Floats sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = load(c + r * c_stride + v * kLanes);
  for (int64_t d = 0; d < depth; ++d) {
    beside();
    Floats lanes[V];
    for (int v = 0; v < V; ++v) lanes[v] = load(b + d * b_stride + v * kLanes);
    for (int part = 0; part < Parts; ++part)
      for (int r = 0; r < R; ++r) {
        const Floats word = broadcast_word(a + r * a_stride + part * depth + d);
        for (int v = 0; v < V; ++v) sums[r][v] = add_product<T>(sums[r][v], word, lanes[v]);
      }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
}

template <typename T, int Parts, int R, typename Beside>
void multiply_add_rows(const float* a, int64_t a_stride, const float* b, int64_t width, float* c, int64_t depth, Beside& beside) {
  int64_t first = 0;
  for (; first + 4 * kLanes <= width; first += 4 * kLanes)
    multiply_add_block<T, Parts, R, 4>(a, a_stride, b + first, width, c + first, width, depth, beside);
  for (; first < width; first += kLanes)
    multiply_add_block<T, Parts, R, 1>(a, a_stride, b + first, width, c + first, width, depth, beside);
}

// c[rows][width] += a[rows][depth] * b[depth][width]; width is a multiple of the lanes, depth in words.
template <typename T, int Parts = 1, typename Beside>
void multiply_add(const float* a, int64_t a_stride, const float* b, int64_t width, float* c, int64_t rows, int64_t depth, Beside& beside) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) multiply_add_rows<T, Parts, 4>(a + row * a_stride, a_stride, b, width, c + row * width, depth, beside);
  a += row * a_stride;
  c += row * width;
  switch (rows - row) {
    case 3: return multiply_add_rows<T, Parts, 3>(a, a_stride, b, width, c, depth, beside);
    case 2: return multiply_add_rows<T, Parts, 2>(a, a_stride, b, width, c, depth, beside);
    case 1: return multiply_add_rows<T, Parts, 1>(a, a_stride, b, width, c, depth, beside);
  }
}

}  // namespace pypto_serving
