// torch's element types and reductions in dda's words.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <string_view>

#include "dda/types.h"

namespace dda {

// How values are reduced; `factor` belongs to kPremulSum.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
};

// std::nullopt for what dda has no name for (quantized and sub-byte types).
std::optional<DType> to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(DType dtype);
Reduction to_reduction(const c10d::ReduceOp& op);

// From the names that users write: "sum", "float32", "all_reduce", "flat". They raise a ValueError
// that lists the names there are.
ReduceOp parse_reduce_op(std::string_view name);
DType parse_dtype(std::string_view name);
Collective parse_collective(std::string_view name);
Algorithm parse_algorithm(std::string_view name);

}  // namespace dda
