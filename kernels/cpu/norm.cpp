// rms_norm, add_rms_norm and finite_rows.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "dispatch.h"
#include "vector.h"

namespace pypto_serving {
namespace {

// out = weight * round(x / sqrt(mean(x^2) + eps)); four partial sums, always combined in the same order.
template <typename T>
void normalise(const T* x, const T* weight, T* out, int64_t width, float eps) {
  Floats squares[4] = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats lanes = load(x + i, width - i);
    squares[i / kLanes % 4] += lanes * lanes;
  }
  const float mean = sum_lanes((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(width);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats lanes = rounded_to<T>(load(x + i, width - i) * scale);
    store(out + i, load(weight + i, width - i) * lanes, width - i);
  }
}

// Rows of [.., H] as (outer, inner) with a stride each, so that heads inside a packed projection need no copy.
struct Rows {
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;

  int64_t offset(int64_t row) const { return row / inner * outer_stride + row % inner * inner_stride; }
};

Rows rows_of(const at::Tensor& x) {
  if (x.dim() == 3) return {x.size(1), x.stride(0), x.stride(1)};
  return {1, x.stride(0), 0};
}

at::Tensor with_plain_rows(const at::Tensor& x) {
  const bool plain = (x.dim() == 2 || x.dim() == 3) && x.stride(-1) == 1;
  return plain ? x : x.contiguous().view({-1, x.size(-1)});
}

void check_weight(const at::Tensor& x, const at::Tensor& weight, const char* op) {
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == x.size(-1) && weight.is_contiguous() && weight.scalar_type() == x.scalar_type(), op,
              ": weight must be contiguous, [", x.size(-1), "], and of x's type");
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_weight(x, weight, "rms_norm");
  at::Tensor out = at::empty(x.sizes(), x.options());
  const at::Tensor source = with_plain_rows(x);
  const Rows rows = rows_of(source);
  const int64_t width = x.size(-1);
  with_element_type(x, "rms_norm", [&](auto element) {
    using T = decltype(element);
    const T* from = source.const_data_ptr<T>();
    const T* scale = weight.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, x.numel() / width, rows_per_task(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        normalise(from + rows.offset(row), scale, to + row * width, width, static_cast<float>(eps));
    });
  });
  return out;
}

template <typename T>
void add(const T* x, const T* residual, T* total, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanes) store(total + i, load(x + i, width - i) + load(residual + i, width - i), width - i);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  check_weight(x, weight, "add_rms_norm");
  TORCH_CHECK(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type(),
              "add_rms_norm: x and residual differ in shape or type");
  const at::Tensor left = x.contiguous(), right = residual.contiguous();
  at::Tensor normed = at::empty_like(left), total = at::empty_like(left);
  const int64_t width = x.size(-1);
  with_element_type(x, "add_rms_norm", [&](auto element) {
    using T = decltype(element);
    const T *a = left.const_data_ptr<T>(), *b = right.const_data_ptr<T>(), *scale = weight.const_data_ptr<T>();
    T *sum = total.mutable_data_ptr<T>(), *out = normed.mutable_data_ptr<T>();
    at::parallel_for(0, x.numel() / width, rows_per_task(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row * width;
        add(a + first, b + first, sum + first, width);
        normalise(sum + first, scale, out + first, width, static_cast<float>(eps));
      }
    });
  });
  return {normed, total};
}

// Zero times anything that is not finite is NaN.
template <typename T>
bool is_finite(const T* x, int64_t width) {
  Floats zeros = {};
  for (int64_t i = 0; i < width; i += kLanes) zeros += load(x + i, width - i) * 0.0f;
  return sum_lanes(zeros) == 0.0f;
}

at::Tensor finite_rows(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "finite_rows: x must be contiguous, [T, H]");
  at::Tensor out = at::empty({x.size(0)}, x.options().dtype(at::kBool));
  const int64_t width = x.size(1);
  with_element_type(x, "finite_rows", [&](auto element) {
    using T = decltype(element);
    const T* from = x.const_data_ptr<T>();
    bool* to = out.mutable_data_ptr<bool>();
    at::parallel_for(0, x.size(0), rows_per_task(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) to[row] = is_finite(from + row * width, width);
    });
  });
  return out;
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("add_rms_norm", add_rms_norm);
  library.impl("finite_rows", finite_rows);
}

}  // namespace
}  // namespace pypto_serving
