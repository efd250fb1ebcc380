// Counters that wrap. Order is decided by unsigned subtraction read as a signed difference, so it
// holds across the wrap as long as two counters are less than half the range apart.
#pragma once

#include <cstdint>

namespace dda {

// A step of a call: the call's number and how many times a block has published within it. As one
// word it only grows.
inline constexpr uint64_t epoch_of(uint32_t call, uint32_t step) {
  return static_cast<uint64_t>(call) << 32 | step;
}

inline constexpr bool has_reached(uint64_t counter, uint64_t target) {
  return static_cast<int64_t>(counter - target) >= 0;
}

}  // namespace dda
