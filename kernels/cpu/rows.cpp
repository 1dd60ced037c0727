// Operators that treat each row by itself: rotary, write_kv, swiglu.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "dispatch.h"
#include "vector.h"

namespace pypto_serving {
namespace {

void check_heads(const at::Tensor& x, const char* what) {
  TORCH_CHECK(x.dim() == 3 && x.stride(2) == 1 && x.stride(1) == x.size(2), what, " must be [T, heads, D] with contiguous heads");
}

// Turns one head; every product is rounded to T, as the checkpoints' own code does.
template <typename T>
void rotate_head(const T* x, const float* cos, const float* sin, T* out, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t count = half - i;
    const Floats low = load(x + i, count), high = load(x + half + i, count);
    const Floats c = rounded_to<T>(load(cos + i, count)), s = rounded_to<T>(load(sin + i, count));
    store(out + i, rounded_to<T>(low * c) - rounded_to<T>(high * s), count);
    store(out + half + i, rounded_to<T>(high * c) + rounded_to<T>(low * s), count);
  }
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& cos, const at::Tensor& sin) {
  at::Tensor out = at::empty(x.sizes(), x.options());
  const int64_t heads = x.size(1), width = x.size(2), half = width / 2, row_stride = x.stride(0), length = cos.size(0);
  const int64_t* position = positions.const_data_ptr<int64_t>();
  const float *cosines = cos.const_data_ptr<float>(), *sines = sin.const_data_ptr<float>();
  with_element_type(x, "rotary", [&](auto element) {
    using T = decltype(element);
    const T* from = x.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, x.size(0), rows_per_task(heads * width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        TORCH_CHECK_INDEX(position[row] >= 0 && position[row] < length, "rotary: position ", position[row], " of ", length);
        const float *c = cosines + position[row] * half, *s = sines + position[row] * half;
        for (int64_t head = 0; head < heads; ++head)
          rotate_head(from + row * row_stride + head * width, c, s, to + (row * heads + head) * width, half);
      }
    });
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                                          const at::Tensor& cos, const at::Tensor& sin) {
  check_heads(q, "rotary: q");
  check_heads(k, "rotary: k");
  TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous() && cos.sizes() == sin.sizes() && cos.size(1) * 2 == q.size(2),
              "rotary: cos and sin must be contiguous, [L, ", q.size(2) / 2, "]");
  TORCH_CHECK(positions.is_contiguous() && positions.size(0) == q.size(0), "rotary: positions must be contiguous, [", q.size(0), "]");
  return {rotate(q, positions, cos, sin), rotate(k, positions, cos, sin)};
}

void scatter_rows(const at::Tensor& rows, at::Tensor& cache, const at::Tensor& slots) {
  TORCH_CHECK(cache.is_contiguous() && cache.dim() == 4 && cache.size(2) == rows.size(1) && cache.size(3) == rows.size(2) &&
                  cache.scalar_type() == rows.scalar_type(),
              "write_kv: the cache must be contiguous, [pages, page_tokens, ", rows.size(1), ", ", rows.size(2), "], of the rows' type");
  const int64_t num_slots = cache.size(0) * cache.size(1);
  const size_t bytes = rows.size(1) * rows.size(2) * rows.element_size(), stride = rows.stride(0) * rows.element_size();
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  const char* from = static_cast<const char*>(rows.const_data_ptr());
  char* to = static_cast<char*>(cache.mutable_data_ptr());
  for (int64_t row = 0; row < rows.size(0); ++row) {
    TORCH_CHECK_INDEX(slot[row] >= 0 && slot[row] < num_slots, "write_kv: slot ", slot[row], " of ", num_slots);
    std::memcpy(to + slot[row] * bytes, from + row * stride, bytes);
  }
}

void write_kv(const at::Tensor& k, const at::Tensor& v, at::Tensor& k_cache, at::Tensor& v_cache, const at::Tensor& slots) {
  check_heads(k, "write_kv: k");
  check_heads(v, "write_kv: v");
  TORCH_CHECK(slots.is_contiguous() && slots.size(0) == k.size(0), "write_kv: slots must be contiguous, [", k.size(0), "]");
  scatter_rows(k, k_cache, slots);
  scatter_rows(v, v_cache, slots);
}

template <typename T>
void swiglu_row(const T* gate, const T* up, T* out, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanes) store(out + i, gated<T>(load(gate + i, width - i), load(up + i, width - i)), width - i);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  TORCH_CHECK(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0 && gate_up.stride(1) == 1, "swiglu: gate_up must be [T, 2I]");
  const int64_t width = gate_up.size(1) / 2, row_stride = gate_up.stride(0);
  at::Tensor out = at::empty({gate_up.size(0), width}, gate_up.options());
  with_element_type(gate_up, "swiglu", [&](auto element) {
    using T = decltype(element);
    const T* from = gate_up.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, gate_up.size(0), rows_per_task(width * 2), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        swiglu_row(from + row * row_stride, from + row * row_stride + width, to + row * width, width);
    });
  });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("rotary", rotary);
  library.impl("write_kv", write_kv);
  library.impl("swiglu", swiglu);
}

}  // namespace
}  // namespace pypto_serving
