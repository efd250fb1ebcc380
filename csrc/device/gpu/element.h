// How each dtype is read, reduced and written on a GPU, with the same bits as on a CPU (see
// device/cpu_lanes.h): 8- and 16-bit floats are reduced in float32 and rounded once, to nearest
// even; a NaN leaves as the one canonical NaN of its type.
#pragma once

#include <cstdint>

#include "device/gpu/call.h"

namespace dda::gpu {

__device__ inline float as_float(uint32_t bits) { return __uint_as_float(bits); }
__device__ inline uint32_t as_bits(float value) { return __float_as_uint(value); }

// Integers: sums wrap in their own width, so they may be taken in 64 bits; so may all else. The
// average needs it.
template <class T, class Wide>
struct Integer {
  using Stored = T;
  using Unit = T;
  using Value = Wide;
  static constexpr bool kIsFloat = false;
  __device__ static Value load(T v) { return static_cast<Wide>(v); }
  __device__ static T store(Value v) { return static_cast<T>(v); }
};
struct Bool : Integer<uint8_t, uint64_t> {
  __device__ static Value load(uint8_t v) { return v != 0; }
};

struct Float32 {
  using Stored = float;
  using Unit = uint32_t;
  using Value = float;
  static constexpr bool kIsFloat = true;
  static constexpr uint32_t kNanPattern = 0x7fc00000;  // of a word
  __device__ static Value load(float v) { return v; }
  __device__ static float store(Value v) { return v != v ? as_float(0x7fc00000) : v; }
};
struct Float64 {
  using Stored = double;
  using Unit = uint64_t;
  using Value = double;
  static constexpr bool kIsFloat = true;
  static constexpr uint32_t kNanPattern = 0x7ff80000;  // of the high word
  __device__ static Value load(double v) { return v; }
  __device__ static double store(Value v) {
    return v != v ? __longlong_as_double(0x7ff8000000000000) : v;
  }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Unit = uint16_t;
  using Value = float;
  static constexpr bool kIsFloat = true;
  static constexpr uint32_t kNanPattern = 0x7fc07fc0;
  __device__ static Value load(uint16_t v) { return as_float(static_cast<uint32_t>(v) << 16); }
  __device__ static uint16_t store(Value v) {
    const uint32_t bits = as_bits(v);
    return v != v ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Unit = uint16_t;
  using Value = float;
  static constexpr bool kIsFloat = true;
  static constexpr uint32_t kNanPattern = 0x7e007e00;
  __device__ static Value load(uint16_t v) {
    const uint32_t magnitude = static_cast<uint32_t>(v & 0x7fff) << 13;
    const uint32_t finite = as_bits(as_float(magnitude) * 0x1p112f);
    const uint32_t chosen = (v & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : finite;
    return as_float(chosen | static_cast<uint32_t>(v & 0x8000) << 16);
  }
  __device__ static uint16_t store(Value v) {
    const uint32_t bits = as_bits(v);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;
    return v != v ? 0x7e00 : half | (bits >> 16 & 0x8000);
  }
};

template <int kExponent, int kFraction, bool kFinite>
struct Float8 {
  using Stored = uint8_t;
  using Unit = uint8_t;
  using Value = float;
  static constexpr bool kIsFloat = true;
  static constexpr uint32_t kNanPattern = 0x7f7f7f7f;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kShift = 23 - kFraction;
  static constexpr uint32_t kNan = 0x7f;
  static constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kFraction;

  __device__ static Value load(uint8_t byte) {
    const uint32_t magnitude = byte & 0x7f;
    const float scale = as_float(static_cast<uint32_t>(127 - kBias + 127) << 23);
    const uint32_t finite = as_bits(as_float(magnitude << kShift) * scale);
    const bool special = kFinite ? magnitude == kNan : magnitude >= kInfinity;
    const uint32_t chosen = special ? (magnitude << kShift) | 0x7f800000 : finite;
    return as_float(chosen | static_cast<uint32_t>(byte & 0x80) << 24);
  }
  __device__ static uint8_t store(Value v) {
    constexpr uint32_t kSmallest = static_cast<uint32_t>(127 - kBias + 1) << 23;  // normal
    constexpr uint32_t kAdder = static_cast<uint32_t>(127 - kBias + 1 + kShift) << 23;
    const uint32_t bits = as_bits(v);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t subnormal = as_bits(as_float(magnitude) + as_float(kAdder)) - kAdder;
    const uint32_t rebias = static_cast<uint32_t>(127 - kBias) << 23;
    const uint32_t half = (1u << (kShift - 1)) - 1;
    const uint32_t normal = (magnitude - rebias + half + (magnitude >> kShift & 1)) >> kShift;
    uint32_t byte = magnitude < kSmallest ? subnormal : normal;
    const uint32_t largest = kFinite ? kNan - 1 : kInfinity - 1;
    const uint32_t beyond = kFinite ? largest : kInfinity;
    const bool large = magnitude >= (static_cast<uint32_t>(127 + kBias + 2) << 23);
    if (large || byte > largest) byte = beyond;
    return v != v ? kNan : byte | (bits >> 24 & 0x80);
  }
};
using Float8E4M3 = Float8<4, 3, true>;
using Float8E5M2 = Float8<5, 2, false>;

template <class Part>
struct Complex {
  using Real = typename Part::Value;
  struct Value {
    Real re, im;
  };
  using Stored = Value;
  using Unit = typename Part::Unit;
  static constexpr bool kIsFloat = true;
  static constexpr uint32_t kNanPattern = Part::kNanPattern;
  __device__ static Value load(Value v) { return v; }
  __device__ static Value store(Value v) { return {Part::store(v.re), Part::store(v.im)}; }
};

// fold(a, b) of two values, for one operation known when the kernel is compiled (kSum) or when it
// runs. A NaN on either side stays, and -0 is less than +0.
template <class V>
__device__ inline V add(V a, V b) {
  if constexpr (std::is_arithmetic<V>::value)
    return a + b;
  else
    return {a.re + b.re, a.im + b.im};
}
template <class V>
__device__ inline V multiply(V a, V b) {
  if constexpr (std::is_arithmetic<V>::value)
    return a * b;
  else
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class V>
__device__ inline bool has_sign(V a) {
  if constexpr (std::is_floating_point<V>::value)
    return signbit(a);
  else
    return a < 0;
}

template <class E, bool kSum>
__device__ inline typename E::Value fold(ReduceOp op, typename E::Value a, typename E::Value b) {
  using V = typename E::Value;
  if constexpr (kSum) return add(a, b);
  if (op == ReduceOp::kProduct) return multiply(a, b);
  if constexpr (std::is_floating_point<V>::value) {
    if (a != a || b != b) return a != a ? a : b;
    const bool a_first = a < b || (a == b && has_sign(a));  // a is the lesser
    return (op == ReduceOp::kMin) == a_first ? a : b;
  } else if constexpr (std::is_integral<V>::value) {
    switch (op) {
      case ReduceOp::kMin:
        return a < b ? a : b;
      case ReduceOp::kMax:
        return a < b ? b : a;
      case ReduceOp::kBand:
        return a & b;
      case ReduceOp::kBor:
        return a | b;
      case ReduceOp::kBxor:
        return a ^ b;
      default:
        return a + b;  // the average's sum
    }
  }
  return a;
}

template <class V>
__device__ inline V divide(V a, int n) {
  if constexpr (std::is_arithmetic<V>::value)
    return a / static_cast<V>(n);
  else
    return {divide(a.re, n), divide(a.im, n)};
}
template <class V>
__device__ inline V scale(V a, double factor) {
  if constexpr (std::is_arithmetic<V>::value)
    return a * static_cast<V>(factor);
  else
    return {scale(a.re, factor), scale(a.im, factor)};
}

}  // namespace dda::gpu
