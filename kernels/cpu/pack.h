// Rows of words laid side by side in panels, and memory for panels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include "key_tile.h"
#include "panel.h"

namespace pypto_serving {

constexpr size_t kHugePage = size_t{2} << 20;

// Memory in huge pages, as far as it fills them and the system gives them. It is mapped for itself: what malloc gives may have been
// touched before, and stays in small pages then. No thread has touched it yet.
inline at::Tensor allocate_panels(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes = c10::multiply_integers(sizes) * options.dtype().itemsize(), mapped = bytes + kHugePage;
  if (bytes < kHugePage) return at::empty(sizes, options);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory for ", bytes, " bytes of panels");
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  madvise(aligned, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return at::from_blob(aligned, sizes, [memory, mapped](void*) { munmap(memory, mapped); }, options);
}

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
