// What every operator needs of torch: tensors, threads, and a choice of element type.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

namespace pypto_serving {

// Calls body(T{}) with the element type of `tensor`.
template <typename Body>
void with_element_type(const at::Tensor& tensor, const char* op, Body body) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return body(float{});
    case at::kBFloat16: return body(c10::BFloat16{});
    default: TORCH_CHECK(false, op, ": element type ", tensor.scalar_type(), ", must be float32 or bfloat16");
  }
}

// Rows per task: small operators are not worth a second thread below about this many elements.
inline int64_t rows_per_task(int64_t row_elements) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_elements)); }

}  // namespace pypto_serving
