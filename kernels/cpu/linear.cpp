// pack_weight, pack_parts, packed_linear, packed_rows: linear layers over panels (see panel.h).

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "linear.h"
#include "pack.h"

namespace pypto_serving {
namespace {

// Copies outputs, null for absent ones, into a panel; what is beyond `depth` elements becomes zero.
template <typename T>
void pack_panel(const T* const (&outputs)[kPanel], int64_t depth, int64_t padded, T* panel) {
  constexpr int64_t kPer = kPanelPerWord<T>;
  lay_side_by_side(padded / kPer, panel, [&](int64_t c, int64_t word) {
    const int64_t first = word * kPer;
    return load_first(outputs[c] ? outputs[c] + first : nullptr, outputs[c] ? (depth - first) * static_cast<int64_t>(sizeof(T)) : 0);
  });
}

// Where the rows of matrices [.., K] that lie below one another begin.
std::vector<const char*> row_pointers(at::TensorList parts, int64_t depth) {
  std::vector<const char*> rows;
  for (const at::Tensor& part : parts) {
    TORCH_CHECK(part.dim() >= 2 && part.is_contiguous() && part.size(-1) == depth && part.scalar_type() == parts[0].scalar_type(),
                "pack_parts: parts must be contiguous, [.., ", depth, "], all of one type");
    for (int64_t row = 0; row < part.numel() / std::max<int64_t>(depth, 1); ++row)
      rows.push_back(static_cast<const char*>(part.const_data_ptr()) + row * depth * part.element_size());
  }
  return rows;
}

// Matrices [N_i, K] below one another, N rows in all -> panels [P, K' / w, 32, w]; with `experts` each of so many equal shares of the rows
// becomes panels by itself: [experts, P, ..]. With `gated` N rows are gates and as many ups, and a panel has 16 of each.
at::Tensor pack_parts(at::TensorList parts, bool gated, std::optional<int64_t> experts) {
  TORCH_CHECK(!parts.empty() && parts[0].dim() >= 2, "pack_parts: no parts [N, K]");
  const int64_t depth = parts[0].size(-1), shares = experts.value_or(1);
  const std::vector<const char*> rows = row_pointers(parts, depth);
  TORCH_CHECK(shares > 0 && rows.size() % shares == 0, "pack_parts: ", rows.size(), " rows for ", shares, " experts");
  const int64_t num_outputs = static_cast<int64_t>(rows.size()) / shares, inner = num_outputs / 2;
  TORCH_CHECK(!gated || num_outputs % 2 == 0, "pack_parts: ", num_outputs, " rows are not gates and as many ups");
  const int64_t num_panels = gated ? (inner + kLanes - 1) / kLanes : (num_outputs + kPanel - 1) / kPanel;
  at::Tensor panels;
  with_weight_type(parts[0], "pack_parts", [&](auto element) {
    using T = decltype(element);
    const int64_t padded = padded_depth<T>(depth);
    std::vector<int64_t> sizes = {num_panels, padded / kPanelPerWord<T>, kPanel, kPanelPerWord<T>};
    if (experts) sizes.insert(sizes.begin(), shares);
    panels = allocate_panels(sizes, parts[0].options());
    T* to = panels.mutable_data_ptr<T>();
    // The threads of a product with few rows read what they have written here.
    at::parallel_for(0, shares * num_panels, panel_grain(padded), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const T* outputs[kPanel];
        for (int64_t c = 0; c < kPanel; ++c) {
          const int64_t place = gated ? task % num_panels * kLanes + c % kLanes : task % num_panels * kPanel + c;
          const bool present = place < (gated ? inner : num_outputs);
          const int64_t row = task / num_panels * num_outputs + place + (gated ? c / kLanes * inner : 0);
          outputs[c] = present ? reinterpret_cast<const T*>(rows[row]) : nullptr;
        }
        pack_panel(outputs, depth, padded, to + task * kPanel * padded);
      }
    });
  });
  return panels;
}

// weight [N, K] or [experts, N, K], see pack_parts.
at::Tensor pack_weight(const at::Tensor& weight, bool gated) {
  TORCH_CHECK((weight.dim() == 2 || weight.dim() == 3) && weight.is_contiguous(), "pack_weight: the weight must be contiguous, [.., N, K]");
  return pack_parts({weight}, gated, weight.dim() == 3 ? std::optional<int64_t>(weight.size(0)) : std::nullopt);
}

void check_panels(const at::Tensor& panels, int64_t depth, int64_t out_features, int64_t per_panel, const char* op) {
  TORCH_CHECK(panels.is_contiguous() && panels.dim() == 4 && panels.size(2) == kPanel, op, ": panels must be as pack_weight gives them");
  with_weight_type(panels, op, [&](auto element) {
    TORCH_CHECK(panels.size(1) * panels.size(3) == padded_depth<decltype(element)>(depth), op, ": panels of another depth than ", depth);
  });
  TORCH_CHECK((out_features + per_panel - 1) / per_panel == panels.size(0), op, ": ", panels.size(0), " panels for ", out_features,
              " outputs");
}

// x [T, K] -> [T, N], by `result`: "plain", of x's type; "gated", of gate-up panels, [T, N / 2]; "float32", the sums as they are.
at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& panels, const std::optional<at::Tensor>& bias, int64_t out_features,
                         c10::string_view result, bool brgemm) {
  const bool gated = result == "gated", raw = result == "float32";
  TORCH_CHECK(gated || raw || result == "plain", "packed_linear: result ", result, ", must be plain, gated or float32");
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == panels.scalar_type(), "packed_linear: x must be [T, K], of the panels' type");
  check_panels(panels, x.size(1), out_features, gated ? 2 * kLanes : kPanel, "packed_linear");
  TORCH_CHECK(!bias || (bias->scalar_type() == at::kFloat && bias->is_contiguous() && bias->numel() == panels.size(0) * kPanel),
              "packed_linear: bias must be as pack_weight gives it for fp32 [N, 1]");
  const int64_t width = gated ? out_features / 2 : out_features, num_rows = x.size(0), depth = panels.size(1) * panels.size(3);
  at::Tensor out = at::empty({num_rows, width}, raw ? x.options().dtype(at::kFloat) : x.options());
  const float* offsets = bias ? bias->const_data_ptr<float>() : nullptr;
  with_weight_type(panels, "packed_linear", [&](auto element) {
    using T = decltype(element);
    with_method<T>(brgemm, "packed_linear", [&](auto method) {
      using Method = decltype(method);
      const at::Tensor rows = readable_rows<typename Method::Input>(x, depth);
      const auto run = [&](auto* to, auto put) {
        multiply_all<Method>(rows.template const_data_ptr<typename Method::Input>(), num_rows, panels.template const_data_ptr<T>(), depth,
                             panels.size(0), [=](int64_t row, int64_t count, int64_t panel, const float* sums) {
                               Floats added[2] = {};
                               for (int64_t half = 0; offsets && half < 2; ++half)
                                 added[half] = load(offsets + panel * kPanel + half * kLanes);
                               put(sums, count, panel, added, to + row * width, width);
                             });
      };
      if (gated) run(out.mutable_data_ptr<T>(), store_gated<T>);
      else if (raw) run(out.mutable_data_ptr<float>(), store_sums<float>);
      else run(out.mutable_data_ptr<T>(), store_sums<T>);
    });
  });
  return out;
}

// ids [T] -> [T, K]: rows of the weight [N, K] that was packed, as they were.
at::Tensor packed_rows(const at::Tensor& ids, const at::Tensor& panels, int64_t out_features, int64_t depth) {
  check_panels(panels, depth, out_features, kPanel, "packed_rows");
  TORCH_CHECK(ids.dim() == 1 && ids.is_contiguous(), "packed_rows: ids must be contiguous, [T]");
  at::Tensor out = at::empty({ids.size(0), depth}, panels.options());
  const int64_t* id = ids.const_data_ptr<int64_t>();
  with_weight_type(panels, "packed_rows", [&](auto element) {
    using T = decltype(element);
    constexpr int64_t kPer = kPanelPerWord<T>;
    const T* from = panels.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, ids.size(0), rows_per_task(depth), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        TORCH_CHECK_INDEX(id[row] >= 0 && id[row] < out_features, "packed_rows: id ", id[row], " of ", out_features);
        const T* column = from + (id[row] / kPanel * padded_depth<T>(depth) * kPanel + id[row] % kPanel * kPer);
        for (int64_t d = 0; d < depth; d += kPer)
          std::memcpy(static_cast<void*>(to + row * depth + d), column + d * kPanel, std::min(kPer, depth - d) * sizeof(T));
      }
    });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(pypto_serving, library) {
  library.def("pack_weight(Tensor weight, bool gated) -> Tensor");
  library.def("pack_parts(Tensor[] parts, bool gated, int? experts=None) -> Tensor");
  library.def("packed_linear(Tensor x, Tensor panels, Tensor? bias, int out_features, str result, bool brgemm) -> Tensor");
  library.def("packed_rows(Tensor ids, Tensor panels, int out_features, int depth) -> Tensor");
}

TORCH_LIBRARY_IMPL(pypto_serving, CPU, library) {
  library.impl("pack_weight", pack_weight);
  library.impl("pack_parts", pack_parts);
  library.impl("packed_linear", packed_linear);
  library.impl("packed_rows", packed_rows);
}

}  // namespace
}  // namespace pypto_serving
