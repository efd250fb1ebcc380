// The routines that touch message bytes on a CPU, compiled once for each instruction set and chosen
// at run time. Everything else in dda is compiled for the oldest machine.
#pragma once

#include <cstdint>

#include "dda/types.h"

namespace dda {

// dst[i] = the n values srcs[0][i] … srcs[n-1][i] reduced in that order, for `count` elements. dst
// may be one of the sources. No pointer need be aligned.
using ReduceFn = void (*)(void* dst, const void* const* srcs, int n, uint64_t count);
// dst[i] = src[i] * factor, rounded to the dtype.
using ScaleFn = void (*)(void* dst, const void* src, uint64_t count, double factor);

struct CpuOps {
  const char* name;
  ReduceFn reduce[kNumDTypes][kNumReduceOps];  // nullptr where the reduction has no meaning
  ScaleFn scale[kNumDTypes];                   // nullptr where PremulSum has none
  void (*copy)(void* dst, const void* src, uint64_t bytes);
  // As copy, past the caches; ends with the fence that non-temporal stores need before a signal.
  void (*copy_stream)(void* dst, const void* src, uint64_t bytes);
};

// The table for this machine: the widest instruction set it has, or the one named ("baseline",
// "avx2", "avx512"); nullptr if it has not that one.
const CpuOps* find_cpu_ops(const char* name);

namespace baseline {
extern const CpuOps kOps;
}
#if defined(__x86_64__)
namespace avx2 {
extern const CpuOps kOps;
}
namespace avx512 {
extern const CpuOps kOps;
}
#endif

}  // namespace dda
