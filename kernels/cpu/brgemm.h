// The micro-kernel that torch exports of oneDNN: declared here, weak, because another build of torch may come without it.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace at::native::cpublas {

[[gnu::weak]] void brgemm(int64_t rows, int64_t columns, int64_t depth, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                          const c10::BFloat16* a, const c10::BFloat16* b, float* c, bool is_vnni);
[[gnu::weak]] void brgemm(int64_t rows, int64_t columns, int64_t depth, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                          const c10::Half* a, const c10::Half* b, float* c, bool is_vnni);
[[gnu::weak]] void brgemm(int64_t rows, int64_t columns, int64_t depth, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                          const float* a, const float* b, float* c, bool is_vnni);
[[gnu::weak]] void brgemm(int64_t rows, int64_t columns, int64_t depth, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add,
                          const unsigned char* a, const signed char* b, int32_t* c, bool is_vnni);
[[gnu::weak]] void brgemm_release(bool is_vnni);

}  // namespace at::native::cpublas

namespace pypto_serving {

inline bool has_brgemm() {
  using Form = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float*, const float*, float*, bool);
  using ByteForm = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const unsigned char*, const signed char*, int32_t*, bool);
  return static_cast<Form>(at::native::cpublas::brgemm) != nullptr && static_cast<ByteForm>(at::native::cpublas::brgemm) != nullptr &&
         at::native::cpublas::brgemm_release != nullptr;
}

}  // namespace pypto_serving
