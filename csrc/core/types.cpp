#include "dda/types.h"

#include <cstddef>

namespace dda {
namespace {

enum class Family { kInteger, kBool, kFloat, kComplex, kOpaque };

struct DTypeInfo {
  const char* name;
  uint8_t size;
  Family family;
};

constexpr DTypeInfo kDTypes[kNumDTypes] = {
    {"uint8", 1, Family::kInteger},
    {"int8", 1, Family::kInteger},
    {"uint16", 2, Family::kInteger},
    {"int16", 2, Family::kInteger},
    {"uint32", 4, Family::kInteger},
    {"int32", 4, Family::kInteger},
    {"uint64", 8, Family::kInteger},
    {"int64", 8, Family::kInteger},
    {"bool", 1, Family::kBool},
    {"float16", 2, Family::kFloat},
    {"bfloat16", 2, Family::kFloat},
    {"float32", 4, Family::kFloat},
    {"float64", 8, Family::kFloat},
    {"complex64", 8, Family::kComplex},
    {"complex128", 16, Family::kComplex},
    {"float8_e4m3fn", 1, Family::kFloat},
    {"float8_e5m2", 1, Family::kFloat},
    {"float8_e4m3fnuz", 1, Family::kOpaque},
    {"float8_e5m2fnuz", 1, Family::kOpaque},
    {"float8_e8m0fnu", 1, Family::kOpaque},
    {"complex32", 4, Family::kOpaque},
};

constexpr const char* kCollectives[] = {
    "barrier", "all_reduce", "reduce",     "broadcast", "all_gather", "reduce_scatter",
    "gather",  "scatter",    "all_to_all", "send",      "recv",       "refused",
};
constexpr const char* kReduceOps[] = {"sum",  "avg", "product", "min",       "max",
                                      "band", "bor", "bxor",    "premul_sum"};
constexpr const char* kAlgorithms[] = {"auto", "flat", "tree"};

template <class Names, class Index>
const char* look_up(const Names& names, Index index) {
  const auto i = static_cast<size_t>(index);
  return i < sizeof(names) / sizeof(names[0]) ? names[i] : "unknown";
}

}  // namespace

uint64_t size_of(DType dtype) { return kDTypes[static_cast<int>(dtype)].size; }

const char* name_of(DType dtype) {
  const auto i = static_cast<int>(dtype);
  return i < kNumDTypes ? kDTypes[i].name : "unknown";
}
const char* name_of(Collective collective) { return look_up(kCollectives, collective); }
const char* name_of(ReduceOp op) { return look_up(kReduceOps, op); }
const char* name_of(Algorithm algorithm) { return look_up(kAlgorithms, algorithm); }

bool is_defined(ReduceOp op, DType dtype) {
  const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  switch (kDTypes[static_cast<int>(dtype)].family) {
    case Family::kInteger:
      return op != ReduceOp::kPremulSum;
    case Family::kBool:
      return op != ReduceOp::kPremulSum && op != ReduceOp::kAvg;
    case Family::kFloat:
      return !bitwise;
    case Family::kComplex:
      return !bitwise && !ordered;
    case Family::kOpaque:
      return false;
  }
  return false;
}

}  // namespace dda
