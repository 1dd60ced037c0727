// Bringing 64 keys and values from the cache's rows into the shapes that attention multiplies with, probabilities too, and its
// results back.
#pragma once

#include "multiply.h"

namespace pypto_serving {

constexpr int64_t kKeyTile = 64;

// Transposes 16 x 16 words.
#ifdef __AVX512F__
inline void transpose(Floats (&block)[kLanes]) {
  __m512 rows[kLanes];
  std::memcpy(rows, block, sizeof(rows));
  // 4 x 4 words within each quarter, then 4 x 4 quarters.
  for (int i = 0; i < kLanes; i += 4) {
    const __m512 low0 = _mm512_unpacklo_ps(rows[i], rows[i + 1]), low1 = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const __m512 high0 = _mm512_unpackhi_ps(rows[i], rows[i + 1]), high1 = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    const auto pairs = [](__m512 a, __m512 b, bool high) {
      const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
      return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
    };
    rows[i] = pairs(low0, low1, false);
    rows[i + 1] = pairs(low0, low1, true);
    rows[i + 2] = pairs(high0, high1, false);
    rows[i + 3] = pairs(high0, high1, true);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512 first0 = _mm512_shuffle_f32x4(rows[i], rows[4 + i], 0x44), first1 = _mm512_shuffle_f32x4(rows[8 + i], rows[12 + i], 0x44);
    const __m512 last0 = _mm512_shuffle_f32x4(rows[i], rows[4 + i], 0xee), last1 = _mm512_shuffle_f32x4(rows[8 + i], rows[12 + i], 0xee);
    block[i] = reinterpret_cast<Floats>(_mm512_shuffle_f32x4(first0, first1, 0x88));
    block[4 + i] = reinterpret_cast<Floats>(_mm512_shuffle_f32x4(first0, first1, 0xdd));
    block[8 + i] = reinterpret_cast<Floats>(_mm512_shuffle_f32x4(last0, last1, 0x88));
    block[12 + i] = reinterpret_cast<Floats>(_mm512_shuffle_f32x4(last0, last1, 0xdd));
  }
}
#else
inline void transpose(Floats (&block)[kLanes]) {
  // Four rounds of the perfect shuffle. Words 0 .. 15 are the first vector's, 16 .. 31 the second's.
  constexpr Ints kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Ints kHigh = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  for (int round = 0; round < 4; ++round) {
    Floats next[kLanes];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shuffle(block[i], block[i + 8], kLow);
      next[2 * i + 1] = __builtin_shuffle(block[i], block[i + 8], kHigh);
    }
    std::memcpy(block, next, sizeof(next));
  }
}
#endif

// Elements are loaded by the word of four bytes: one fp32 element, or two bf16 ones that widen to two vectors, even and odd.
template <typename T>
constexpr int64_t kPerWord = sizeof(float) / sizeof(T);

template <typename T>
void widen(Floats words, Floats (&parts)[kPerWord<T>]) {
  if constexpr (kPerWord<T> == 1) {
    parts[0] = words;
  } else {
    parts[0] = reinterpret_cast<Floats>(reinterpret_cast<Words>(words) << 16);
    parts[1] = reinterpret_cast<Floats>(reinterpret_cast<Words>(words) & 0xffff0000u);
  }
}

template <typename T>
Floats narrow(const Floats (&parts)[kPerWord<T>]) {
  if constexpr (kPerWord<T> == 1) return parts[0];
  else return reinterpret_cast<Floats>(bfloat16_bits(parts[0]) | bfloat16_bits(parts[1]) << 16);
}

// The words `first` .. `first + 15` of a row of `width` elements; what is beyond the row is zero.
template <typename T>
Floats load_words(const T* row, int64_t first, int64_t width) {
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T)) - first * 4;
  if (bytes >= static_cast<int64_t>(sizeof(Floats))) return load(reinterpret_cast<const float*>(row + first * kPerWord<T>));
  float words[kLanes] = {};
  if (bytes > 0) std::memcpy(words, row + first * kPerWord<T>, bytes);
  return load(words);
}

template <typename T>
void store_words(T* row, int64_t first, int64_t width, Floats words) {
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T)) - first * 4;
  if (bytes > 0) std::memcpy(static_cast<void*>(row + first * kPerWord<T>), &words, std::min<int64_t>(bytes, sizeof(words)));
}

// The rows of a key tile of one kv head, and the rows that are read in the next tile; a row of zeros stands for an absent one. The next
// ones are asked for piece by piece, keys while the first are loaded, values while they are multiplied: of a burst most would be dropped.
// Into L2: between a tile and the next lie all kv heads of it, more than L1 holds.
template <typename T>
struct KeyRows {
  const T* now[kKeyTile];
  const T* next[kKeyTile];
};

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

// Asks for the next rows, two lines at a call, until all were asked for.
class Prefetch {
 public:
  template <typename T>
  Prefetch(const KeyRows<T>& rows, int64_t width)
      : row_(reinterpret_cast<const char* const*>(rows.next)), end_(row_ + kKeyTile), bytes_(width * sizeof(T)) {}

  void operator()() {
    ask();
    ask();
  }

 private:
  void ask() {
    if (row_ == end_) return;
    prefetch(*row_ + at_);
    at_ += 64;
    if (at_ >= bytes_) at_ = 0, ++row_;
  }

  const char* const* row_;
  const char* const* end_;
  int64_t bytes_, at_ = 0;
};

// keys[padded][64] from rows of `width` elements, as words of an operand; `padded` is `width` rounded up to whole vectors of words.
template <typename T>
void load_keys(const KeyRows<T>& rows, int64_t width, int64_t padded, float* keys) {
  for (int64_t key = 0; key < kKeyTile; key += kLanes)
    for (int64_t first = 0; first < padded / kPerWord<T>; first += kLanes) {
      Floats block[kLanes], parts[kPerWord<T>];
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = load_words(rows.now[key + i], first, width);
        prefetch(rows.next[key + i] + first * kPerWord<T>);
      }
      transpose(block);
      for (int64_t i = 0; i < kLanes; ++i) {
        if constexpr (kPaired<T>) {
          store(keys + (first + i) * kKeyTile + key, block[i]);
        } else {
          widen<T>(block[i], parts);
          float* to = keys + (first + i) * kPerWord<T> * kKeyTile + key;
          for (int64_t part = 0; part < kPerWord<T>; ++part) store(to + part * kKeyTile, parts[part]);
        }
      }
    }
}

// The elements of two rows that are in the lower, or in the upper half of each word, side by side.
inline Floats lower_halves(Floats a, Floats b) {
  return reinterpret_cast<Floats>((reinterpret_cast<Words>(a) & 0xffffu) | reinterpret_cast<Words>(b) << 16);
}
inline Floats upper_halves(Floats a, Floats b) {
  return reinterpret_cast<Floats>(reinterpret_cast<Words>(a) >> 16 | (reinterpret_cast<Words>(b) & 0xffff0000u));
}

// values[64][padded] from rows, as words of an operand. In bf16 each 32 columns are stored as the even ones, then the odd ones;
// store_result puts them back.
template <typename T>
void load_values(const KeyRows<T>& rows, int64_t width, int64_t padded, float* values) {
  for (int64_t row = 0; row < kKeyTile; row += kDepthPerWord<T>, values += padded)
    for (int64_t first = 0; first < padded; first += kLanes * kPerWord<T>) {
      Floats parts[kPerWord<T>];
      const Floats words = load_words(rows.now[row], first / kPerWord<T>, width);
      if constexpr (kPaired<T>) {
        const Floats following = load_words(rows.now[row + 1], first / kPerWord<T>, width);
        parts[0] = lower_halves(words, following);
        parts[1] = upper_halves(words, following);
      } else {
        widen<T>(words, parts);
      }
      for (int64_t part = 0; part < kPerWord<T>; ++part) store(values + first + part * kLanes, parts[part]);
    }
}

// Zero in place of the keys outside first .. end of such values.
template <typename T>
void clear_values_outside(int64_t first, int64_t end, int64_t padded, float* values) {
  for (int64_t key = 0; key < kKeyTile; ++key) {
    if (key >= first && key < end) continue;
    const uint32_t kept = !kPaired<T> ? 0 : key % 2 ? 0xffffu : 0xffff0000u;
    float* row = values + key / kDepthPerWord<T> * padded;
    for (int64_t i = 0; i < padded; i += kLanes) store(row + i, reinterpret_cast<Floats>(reinterpret_cast<Words>(load(row + i)) & kept));
  }
}

// Whether such values are all finite: zero times anything else is NaN.
template <typename T>
bool all_finite(const float* values, int64_t padded) {
  Floats zeros = {};
  for (int64_t i = 0; i < kKeyTile / kDepthPerWord<T> * padded; i += kLanes) zeros = add_product<T>(zeros, load(values + i), Floats{});
  return sum_lanes(zeros) == 0.0f;
}

#ifdef __AVX512BF16__
// Two vectors of fp32 rounded to bf16, the elements of `low` before those of `high`, and one of them widened again.
inline Floats rounded_pair(Floats low, Floats high) {
  return reinterpret_cast<Floats>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low)));
}
inline Floats widened_half(Floats pair, int which) {
  const __m512i bits = reinterpret_cast<__m512i>(pair);
  const __m256i half = which ? _mm512_extracti64x4_epi64(bits, 1) : _mm512_castsi512_si256(bits);
  return reinterpret_cast<Floats>(widened(reinterpret_cast<Halves>(half)) << 16);
}
#endif

// The parts of a probability, each an operand: one in bf16 alone would cost as much exactness as rounding the result does.
template <typename T>
constexpr int kProbabilityParts = kPaired<T> ? 2 : 1;

// Stores 64 probabilities as words of operands, the parts one behind the other.
template <typename T>
void store_probabilities(const Floats (&lanes)[4], float* words) {
#ifdef __AVX512BF16__
  if constexpr (kPaired<T>) {
    for (int pair = 0; pair < 2; ++pair) {
      const Floats low = lanes[2 * pair], high = lanes[2 * pair + 1];
      const Floats rounded = rounded_pair(low, high);
      const Floats rest = rounded_pair(low - widened_half(rounded, 0), high - widened_half(rounded, 1));
      store(words + pair * kLanes, rounded);
      store(words + kKeyTile / 2 + pair * kLanes, rest);
    }
    return;
  }
#endif
  for (int v = 0; v < 4; ++v) store(words + v * kLanes, lanes[v]);
}

// The accumulator over the denominator. A zero is stored as +0: adding products with a probability of zero may or may
// not have turned a -0 around.
template <typename T>
void store_result(const float* accumulator, float denominator, int64_t width, int64_t padded, T* out) {
  for (int64_t first = 0; first < padded; first += kLanes * kPerWord<T>) {
    Floats parts[kPerWord<T>];
    for (int64_t part = 0; part < kPerWord<T>; ++part) parts[part] = load(accumulator + first + part * kLanes) / denominator + 0.0f;
    store_words(out, first / kPerWord<T>, width, narrow<T>(parts));
  }
}

}  // namespace pypto_serving
