// Sixteen fp32 lanes in the compiler's portable vector types: AVX-512, AVX2 and NEON all come from this one text.
//
// Every row is computed by the same sequence of operations whatever the number of rows, so that rows are batch-invariant.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace pypto_serving {

constexpr int64_t kLanes = 16;

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));
using Words = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

constexpr Ints kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline Floats broadcast(float value) { return Floats{} + value; }

// Four bytes at `from` in every lane, whatever they mean.
inline Floats broadcast_word(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return reinterpret_cast<Floats>(Ints{} + word);
}

// Comparisons are written so that NaN in the first operand comes through.
inline Floats at_least(Floats x, float bound) { return x < bound ? broadcast(bound) : x; }
inline Floats at_most(Floats x, float bound) { return x > bound ? broadcast(bound) : x; }
inline Floats maximum(Floats x, Floats y) { return x < y ? y : x; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

// GCC cuts these two conversions in halves, so AVX-512 gets its own instructions.
inline Words widened(Halves halves) {
#ifdef __AVX512F__
  return reinterpret_cast<Words>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(halves)));
#else
  return __builtin_convertvector(halves, Words);
#endif
}

inline Halves narrowed(Words words) {
#ifdef __AVX512F__
  return reinterpret_cast<Halves>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#else
  return __builtin_convertvector(words, Halves);
#endif
}

inline Floats load(const c10::BFloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return reinterpret_cast<Floats>(widened(halves) << 16);
}

inline Floats load(const c10::Half* from) {
  Floats x;
  for (int64_t i = 0; i < kLanes; ++i) x[i] = from[i];
  return x;
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof(x)); }

// Round to nearest, ties to even; NaN stays NaN.
inline Words bfloat16_bits(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return x == x ? rounded : Words{} + 0x7fc0;
}

inline void store(c10::BFloat16* to, Floats x) {
  const Halves halves = narrowed(bfloat16_bits(x));
  std::memcpy(to, &halves, sizeof(halves));
}

inline void store(c10::Half* to, Floats x) {
  for (int64_t i = 0; i < kLanes; ++i) to[i] = c10::Half(x[i]);
}

// The first `count` lanes, the others zero.
template <typename T>
inline Floats load(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), from, count * sizeof(T));
  return load(lanes);
}

template <typename T>
inline void store(T* to, Floats x, int64_t count) {
  if (count >= kLanes) return store(to, x);
  T lanes[kLanes];
  store(lanes, x);
  std::memcpy(static_cast<void*>(to), lanes, count * sizeof(T));
}

// What is left of x once stored as T.
template <typename T>
inline Floats rounded_to(Floats x);
template <>
inline Floats rounded_to<float>(Floats x) { return x; }
template <>
inline Floats rounded_to<c10::BFloat16>(Floats x) { return reinterpret_cast<Floats>(bfloat16_bits(x) << 16); }
template <>
inline Floats rounded_to<c10::Half>(Floats x) {
  for (int64_t i = 0; i < kLanes; ++i) x[i] = c10::Half(x[i]);
  return x;
}

inline Floats half_swapped(Floats x) { return __builtin_shuffle(x, (kLaneIndex + 8) & 15); }
inline Floats quarter_swapped(Floats x) { return __builtin_shuffle(x, (kLaneIndex + 4) & 15); }
inline Floats pair_swapped(Floats x) { return __builtin_shuffle(x, (kLaneIndex + 2) & 15); }
inline Floats neighbour(Floats x) { return __builtin_shuffle(x, (kLaneIndex + 1) & 15); }

inline float sum_lanes(Floats x) {
  x += half_swapped(x);
  x += quarter_swapped(x);
  x += pair_swapped(x);
  return (x + neighbour(x))[0];
}

inline float max_lanes(Floats x) {
  x = maximum(x, half_swapped(x));
  x = maximum(x, quarter_swapped(x));
  x = maximum(x, pair_swapped(x));
  return maximum(x, neighbour(x))[0];
}

// e^x to about 1 ulp; below -87 it stays at e^-87, from 88.4 on it is infinite, and exp(0) is exactly 1.
// x = n ln2 + r with |r| <= ln2 / 2; the polynomial is that of Cephes' expf.
inline Floats exp(Floats x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = at_most(at_least(x, -87.0f), 89.0f);
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * reinterpret_cast<Floats>((reinterpret_cast<Ints>(shifted) << 23) + 0x3f800000);
}

// silu(gate) * up, with silu rounded to T on the way.
template <typename T>
inline Floats gated(Floats gate, Floats up) { return rounded_to<T>(gate / (exp(-gate) + 1.0f)) * up; }

}  // namespace pypto_serving
