// A reduction of one dtype, as the algorithms see it.
#pragma once

#include <algorithm>

#include "device/cpu.h"
#include "device/cpu_ops.h"

namespace dda {

struct CpuReducer {
  ReduceFn fn = nullptr;
  ScaleFn scale = nullptr;  // premultiplied sums only
  double factor = 1.0;
  uint64_t element = 1;                                    // bytes of one
  void (*stream)(void*, const void*, uint64_t) = nullptr;  // where the output streams

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
  // Where the output streams, it is reduced piece by piece into a buffer that the first cache
  // holds.
  void reduce(void* dst, const void* const* sources, int n, uint64_t count) const {
    const uint64_t piece = stream == nullptr ? count : kPieceBytes / element;
    alignas(kLineBytes) unsigned char buffer[kPieceBytes];
    const void* at[kMaxRanks];
    for (uint64_t i = 0; i < count; i += piece) {
      const uint64_t here = std::min(piece, count - i);
      for (int r = 0; r < n; ++r) {
        at[r] = static_cast<const unsigned char*>(sources[r]) + i * element;
      }
      unsigned char* const to = static_cast<unsigned char*>(dst) + i * element;
      fn(stream == nullptr ? to : buffer, at, n, here);
      if (stream != nullptr) stream(to, buffer, here * element);
    }
  }

  static constexpr uint64_t kPieceBytes = 8 << 10;
};

inline CpuReducer reducer_of(const CpuOps& ops, DType dtype, ReduceOp op, double factor,
                             bool streams) {
  const auto d = static_cast<int>(dtype);
  return {ops.reduce[d][static_cast<int>(op)], op == ReduceOp::kPremulSum ? ops.scale[d] : nullptr,
          factor, size_of(dtype), streams ? ops.copy_stream : nullptr};
}

}  // namespace dda
