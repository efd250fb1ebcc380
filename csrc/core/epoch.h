// Counters that wrap. Order is decided by unsigned subtraction read as a signed difference, so it
// holds across the wrap as long as two counters are less than half the range apart.
#pragma once

#include <cstdint>

namespace dda {

inline constexpr bool has_reached(uint64_t counter, uint64_t target) {
  return static_cast<int64_t>(counter - target) >= 0;
}

}  // namespace dda
