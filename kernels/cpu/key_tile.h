// Bringing 64 keys and values from the cache's rows into the shapes that attention multiplies with, and its results back.
#pragma once

#include "vector.h"

namespace pypto_serving {

constexpr int64_t kKeyTile = 64;

// Four rounds of the perfect shuffle transpose 16 x 16 words.
inline void transpose(Floats (&block)[kLanes]) {
  // Words 0 .. 15 are the first vector's, 16 .. 31 the second's.
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

// The words `first` .. `first + 15` of a row of `width` elements; what is beyond the row, or of an absent row, is zero.
template <typename T>
Floats load_words(const T* row, int64_t first, int64_t width) {
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T)) - first * 4;
  if (row && bytes >= static_cast<int64_t>(sizeof(Floats))) return load(reinterpret_cast<const float*>(row + first * kPerWord<T>));
  Floats words = {};
  if (row && bytes > 0) std::memcpy(&words, row + first * kPerWord<T>, bytes);
  return words;
}

template <typename T>
void store_words(T* row, int64_t first, int64_t width, Floats words) {
  const int64_t bytes = width * static_cast<int64_t>(sizeof(T)) - first * 4;
  if (bytes > 0) std::memcpy(static_cast<void*>(row + first * kPerWord<T>), &words, std::min<int64_t>(bytes, sizeof(words)));
}

// The rows of a key tile of one kv head, null for absent ones, and the rows that are read next. These are asked for one by one while
// the first are loaded: a burst of requests would be dropped.
template <typename T>
struct KeyRows {
  const T* now[kKeyTile];
  const T* next[kKeyTile];
};

// keys[padded][64] from rows of `width` elements; `padded` is `width` rounded up to whole vectors of words.
template <typename T>
void load_keys(const KeyRows<T>& rows, int64_t width, int64_t padded, float* keys) {
  for (int64_t key = 0; key < kKeyTile; key += kLanes)
    for (int64_t first = 0; first < padded / kPerWord<T>; first += kLanes) {
      Floats block[kLanes], parts[kPerWord<T>];
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = load_words(rows.now[key + i], first, width);
        __builtin_prefetch(rows.next[key + i] + first * kPerWord<T>);
      }
      transpose(block);
      for (int64_t i = 0; i < kLanes; ++i) {
        widen<T>(block[i], parts);
        float* to = keys + (first + i) * kPerWord<T> * kKeyTile + key;
        for (int64_t part = 0; part < kPerWord<T>; ++part) store(to + part * kKeyTile, parts[part]);
      }
    }
}

// values[64][padded] from rows. In bf16 each 32 elements are stored as the even ones, then the odd ones; store_result puts them back.
template <typename T>
void load_values(const KeyRows<T>& rows, int64_t width, int64_t padded, float* values) {
  for (int64_t row = 0; row < kKeyTile; ++row)
    for (int64_t first = 0; first < padded; first += kLanes * kPerWord<T>) {
      Floats parts[kPerWord<T>];
      widen<T>(load_words(rows.now[row], first / kPerWord<T>, width), parts);
      __builtin_prefetch(rows.next[row] + first);
      for (int64_t part = 0; part < kPerWord<T>; ++part) store(values + row * padded + first + part * kLanes, parts[part]);
    }
}

template <typename T>
void store_result(const float* sums, float weight, int64_t width, int64_t padded, T* out) {
  for (int64_t first = 0; first < padded; first += kLanes * kPerWord<T>) {
    Floats parts[kPerWord<T>];
    for (int64_t part = 0; part < kPerWord<T>; ++part) parts[part] = load(sums + first + part * kLanes) / weight;
    store_words(out, first / kPerWord<T>, width, narrow<T>(parts));
  }
}

}  // namespace pypto_serving
