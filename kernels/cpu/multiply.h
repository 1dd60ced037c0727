// Products of small fp32 matrices whose elements add up in order of depth, whatever block of rows they are computed in.
#pragma once

#include "vector.h"

namespace pypto_serving {

// c[R][16 V] += a[R][depth] * b[depth][16 V], each element adding its products in order of depth.
template <int R, int V>
void multiply_add_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride, int64_t depth) {
  Floats sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sums[r][v] = load(c + r * c_stride + v * kLanes);
  for (int64_t d = 0; d < depth; ++d)
    for (int v = 0; v < V; ++v) {
      const Floats lanes = load(b + d * b_stride + v * kLanes);
      for (int r = 0; r < R; ++r) sums[r][v] += a[r * a_stride + d] * lanes;
    }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
}

template <int R>
void multiply_add_rows(const float* a, int64_t a_stride, const float* b, int64_t width, float* c, int64_t depth) {
  int64_t first = 0;
  for (; first + 4 * kLanes <= width; first += 4 * kLanes)
    multiply_add_block<R, 4>(a, a_stride, b + first, width, c + first, width, depth);
  for (; first < width; first += kLanes) multiply_add_block<R, 1>(a, a_stride, b + first, width, c + first, width, depth);
}

// c[rows][width] += a[rows][depth] * b[depth][width]; width is a multiple of the lanes.
inline void multiply_add(const float* a, int64_t a_stride, const float* b, int64_t width, float* c, int64_t rows, int64_t depth) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) multiply_add_rows<4>(a + row * a_stride, a_stride, b, width, c + row * width, depth);
  a += row * a_stride;
  c += row * width;
  switch (rows - row) {
    case 3: return multiply_add_rows<3>(a, a_stride, b, width, c, depth);
    case 2: return multiply_add_rows<2>(a, a_stride, b, width, c, depth);
    case 1: return multiply_add_rows<1>(a, a_stride, b, width, c, depth);
  }
}

}  // namespace pypto_serving
