// Rows of words laid side by side in panels.
#pragma once

#include "key_tile.h"
#include "panel.h"

namespace pypto_serving {

// The first `count` bytes at `from`, as far as they fill a vector, the others zero.
inline Floats load_first(const void* from, int64_t count) {
  Floats words = {};
  if (count > 0) std::memcpy(&words, from, std::min<int64_t>(count, sizeof(words)));
  return words;
}

// to[word][row] = word `word` of 32 rows. words_of(row, first) gives the words `first` .. `first + 15` of a row, zero where it has none.
template <typename WordsOf>
void lay_side_by_side(int64_t num_words, void* to, WordsOf words_of) {
  for (int64_t first = 0; first < num_words; first += kLanes)
    for (int64_t row = 0; row < kPanel; row += kLanes) {
      Floats block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) block[i] = words_of(row + i, first);
      transpose(block);
      for (int64_t i = 0; i < std::min(kLanes, num_words - first); ++i)
        std::memcpy(static_cast<char*>(to) + ((first + i) * kPanel + row) * sizeof(float), &block[i], sizeof(Floats));
    }
}

}  // namespace pypto_serving
