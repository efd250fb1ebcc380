// The words of a call: which collective, on which elements, reduced how. No torch, no device.
#pragma once

#include <cstdint>

namespace dda {

enum class Collective : uint8_t {
  kBarrier,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kSend,
  kReceive,
  kRefused,  // not a collective: the rank met an error of its own before this call
};

enum class DType : uint8_t {
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kUInt64,
  kInt64,
  kBool,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
  kFloat8E4M3,      // float8_e4m3fn
  kFloat8E5M2,      // float8_e5m2
  kFloat8E4M3Fnuz,  // copies only
  kFloat8E5M2Fnuz,  // copies only
  kFloat8E8M0,      // copies only
  kComplex32,       // copies only
};
inline constexpr int kNumDTypes = 21;

// What reduces n values to one. Sums of 8- and 16-bit floats are kept in float32, in rank order,
// and rounded once. Average divides by the number of ranks (integers truncate towards zero).
// PremulSum multiplies each value by Call::factor, rounds to the dtype, and sums.
enum class ReduceOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };
inline constexpr int kNumReduceOps = 9;

enum class Algorithm : uint8_t { kAuto, kFlat, kTree };

// Bytes of one element.
uint64_t size_of(DType dtype);
const char* name_of(Collective collective);
const char* name_of(DType dtype);
const char* name_of(ReduceOp op);
const char* name_of(Algorithm algorithm);

// Whether `op` has a meaning on `dtype` (the maximum of complex numbers has none).
bool is_defined(ReduceOp op, DType dtype);

}  // namespace dda
