// A reduction of one dtype, as the algorithms see it.
#pragma once

#include "device/cpu_ops.h"
#include "device/cpu.h"

namespace dda {

struct CpuReducer {
  ReduceFn fn = nullptr;
  ScaleFn scale = nullptr;  // premultiplied sums only
  double factor = 1.0;

  // Whether values change on the way into a slot; a rank's own must then take that way too.
  bool scales() const { return scale != nullptr; }
  void stage(const CpuBlock& b, uint64_t c, uint64_t at, const void* from, uint64_t count,
             uint64_t element) const {
    if (scales()) {
      scale(b.slot(c, at), from, count, factor);
    } else {
      b.stage(c, at, from, count * element);
    }
  }
  void reduce(void* dst, const void* const* sources, int n, uint64_t count) const {
    if (count != 0) fn(dst, sources, n, count);
  }
};

inline CpuReducer reducer_of(const CpuOps& ops, DType dtype, ReduceOp op, double factor) {
  const auto d = static_cast<int>(dtype);
  return {ops.reduce[d][static_cast<int>(op)],
          op == ReduceOp::kPremulSum ? ops.scale[d] : nullptr, factor};
}

}  // namespace dda
