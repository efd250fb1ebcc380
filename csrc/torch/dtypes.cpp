#include "torch/dtypes.h"

#include <array>
#include <sstream>
#include <utility>

namespace dda {
namespace {

constexpr std::array<std::pair<at::ScalarType, DType>, kNumDTypes> kTypes{{
    {at::kByte, DType::kUInt8},
    {at::kChar, DType::kInt8},
    {at::kUInt16, DType::kUInt16},
    {at::kShort, DType::kInt16},
    {at::kUInt32, DType::kUInt32},
    {at::kInt, DType::kInt32},
    {at::kUInt64, DType::kUInt64},
    {at::kLong, DType::kInt64},
    {at::kBool, DType::kBool},
    {at::kHalf, DType::kFloat16},
    {at::kBFloat16, DType::kBFloat16},
    {at::kFloat, DType::kFloat32},
    {at::kDouble, DType::kFloat64},
    {at::kComplexFloat, DType::kComplex64},
    {at::kComplexDouble, DType::kComplex128},
    {at::kFloat8_e4m3fn, DType::kFloat8E4M3},
    {at::kFloat8_e5m2, DType::kFloat8E5M2},
    {at::kFloat8_e4m3fnuz, DType::kFloat8E4M3Fnuz},
    {at::kFloat8_e5m2fnuz, DType::kFloat8E5M2Fnuz},
    {at::kFloat8_e8m0fnu, DType::kFloat8E8M0},
    {at::kComplexHalf, DType::kComplex32},
}};

// Finds the value among the first `count` of an enum whose name is `name`.
template <typename Enum>
Enum parse(const char* what, std::string_view name, int count) {
  std::ostringstream known;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (name == name_of(value)) return value;
    known << (i == 0 ? "" : ", ") << name_of(value);
  }
  TORCH_CHECK_VALUE(false, "dda: unknown ", what, " '", name, "'; there are ", known.str());
}

}  // namespace

std::optional<DType> to_dtype(at::ScalarType type) {
  for (const auto& [torch_type, dtype] : kTypes) {
    if (torch_type == type) return dtype;
  }
  return std::nullopt;
}

at::ScalarType to_scalar_type(DType dtype) {
  for (const auto& [torch_type, ours] : kTypes) {
    if (ours == dtype) return torch_type;
  }
  TORCH_INTERNAL_ASSERT(false, "dda: no torch type for ", name_of(dtype));
}

Reduction to_reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAvg};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProduct};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBand};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBor};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBxor};
    case c10d::ReduceOp::PREMUL_SUM: {
      // torch renamed this type in 2.13 and kept the old name.
      const auto* scale = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK(scale != nullptr, "dda: PREMUL_SUM without a factor");
      const at::Tensor& factor = scale->tensor_factor;
      return {ReduceOp::kPremulSum,
              factor.defined() ? factor.item<double>() : scale->double_factor};
    }
    default:
      TORCH_CHECK(false, "dda: unknown reduction ", static_cast<int>(op.op_));
  }
}

ReduceOp parse_reduce_op(std::string_view name) {
  if (name == "mean") return ReduceOp::kAvg;
  return parse<ReduceOp>("reduction", name, kNumReduceOps);
}

DType parse_dtype(std::string_view name) { return parse<DType>("dtype", name, kNumDTypes); }

Collective parse_collective(std::string_view name) {
  return parse<Collective>("collective", name, static_cast<int>(Collective::kSend));
}

Algorithm parse_algorithm(std::string_view name) {
  return parse<Algorithm>("algorithm", name, static_cast<int>(Algorithm::kTree) + 1);
}

}  // namespace dda
