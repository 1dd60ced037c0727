// Rows as bytes: what is multiplied with weights of few bits. A row is quantized by itself, and sums of integers are exact in any order,
// so that no row of a product depends on the others.
#pragma once

#include "panel.h"

namespace pypto_serving {

using Bytes = uint8_t __attribute__((vector_size(16)));
using Shorts = int16_t __attribute__((vector_size(64)));

constexpr int64_t kVectors = kPanel / kLanes;
constexpr float kLevels = 127.0f;
constexpr float kLeast = 1e-30f;  // rows that hold nothing larger count as zeros: 127 / x has to stay finite

inline Ints magnitudes(Floats x) { return reinterpret_cast<Ints>(x) & 0x7fffffff; }

// The largest magnitude of `count` elements. Compared as integers NaN is the largest, so that it comes through.
template <typename T>
float largest(const T* row, int64_t count) {
  Ints highest = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Ints x = magnitudes(load(row + i, count - i));
    highest = x > highest ? x : highest;
  }
  int32_t top = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) top = std::max(top, static_cast<int32_t>(highest[lane]));
  float value;
  std::memcpy(&value, &top, sizeof(value));
  return value;
}

// x / scale to the nearest integer, ties to even, plus `zero`, as bytes; returns the scale. Bytes of `to` behind the row become `zero`.
template <typename T>
float quantize(const T* row, int64_t count, int64_t padded, int32_t zero, uint8_t* to) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float top = largest(row, count), inverse = top > kLeast ? kLevels / top : 0.0f;
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Floats x = i < count ? load(row + i, count - i) : Floats{};
    const Ints levels = reinterpret_cast<Ints>(x * inverse + kRound) - 0x4b400000 + zero;
    const Bytes bytes = __builtin_convertvector(levels, Bytes);
    std::memcpy(to + i, &bytes, std::min(kLanes, padded - i));
  }
  return top / kLevels;
}

inline Ints broadcast_quad(const uint8_t* from) {
  int32_t quad;
  std::memcpy(&quad, from, sizeof(quad));
  return Ints{} + quad;
}

inline Ints load_bytes(const void* from) {
  Ints words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
inline Ints add_pairs(Shorts x, Shorts y) {
  return reinterpret_cast<Ints>(_mm512_madd_epi16(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
}
#elif defined(__AVX2__) && !defined(__AVX512BW__)
inline Ints add_pairs(Shorts x, Shorts y) {
  __m256i a[2], b[2];
  std::memcpy(a, &x, sizeof(x));
  std::memcpy(b, &y, sizeof(y));
  for (int half = 0; half < 2; ++half) a[half] = _mm256_madd_epi16(a[half], b[half]);
  return load_bytes(a);
}
#else
// A product of two bytes fits 16 bits, the sum of two need not.
inline Ints add_pairs(Shorts x, Shorts y) {
  const Ints products = reinterpret_cast<Ints>(x * y);
  return (products << 16 >> 16) + (products >> 16);
}
#endif

// To each lane of `sums`: the products of its four unsigned bytes with its four signed ones.
inline Ints add_products(Ints sums, Ints unsigned_bytes, Ints signed_bytes) {
#ifdef __AVX512VNNI__
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(unsigned_bytes),
                                                    reinterpret_cast<__m512i>(signed_bytes)));
#else
  const Shorts u = reinterpret_cast<Shorts>(unsigned_bytes), s = reinterpret_cast<Shorts>(signed_bytes);
  const Shorts odd = reinterpret_cast<Shorts>(reinterpret_cast<Words>(unsigned_bytes) >> 8 & 0x00ff00ffu);
  return sums + add_pairs(u & 0xff, s << 8 >> 8) + add_pairs(odd, s >> 8);
#endif
}

inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }

}  // namespace pypto_serving
