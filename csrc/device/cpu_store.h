// How a core puts data where another will read it: through its caches or past them.
//
// Between cores that share a cache, plain stores win. Between distant ones (another socket or core
// complex) every plain store to a line that the reader holds waits for its invalidation, and
// non-temporal stores are up to five times faster. Which it is can change while a program runs: a
// virtual machine's cores move. So each block times its own copies and keeps a mean for both kinds;
// every 128th copy takes the other kind, to notice a change. This is a choice of one rank alone:
// peers find the same bytes either way.
#pragma once

#include <cstdint>

#include "device/cpu_ops.h"

namespace dda {

class StoreChoice {
 public:
  void copy(const CpuOps& ops, void* dst, const void* src, uint64_t bytes) {
    if (bytes < kLeastBytes) {
      if (bytes != 0) ops.copy(dst, src, bytes);
      return;
    }
    const bool explores = ++copies_ % kExploreEvery == 0;
    const bool streams = is_stream_better_ != explores;
    const uint64_t begin = ticks();
    (streams ? ops.copy_stream : ops.copy)(dst, src, bytes);
    const double rate = static_cast<double>(ticks() - begin) / static_cast<double>(bytes);
    double& mean = streams ? stream_ : plain_;
    mean += (rate - mean) * (mean == 0.0 ? 1.0 : kWeight);
    is_stream_better_ = stream_ != 0.0 && plain_ > kReaderCost * stream_;
  }

 private:
  static constexpr uint64_t kLeastBytes = 8 << 10;
  static constexpr uint32_t kExploreEvery = 128;
  static constexpr double kWeight = 0.125;
  // The reader pays too: it finds streamed data in memory, not in the writer's cache. Measured on
  // Zen 4: where plain stores are the better choice on the whole they take at most 1.9 times as
  // long as streamed ones; where they are not, at least 4 times.
  static constexpr double kReaderCost = 2.5;

  static uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;  // both means stay 0: plain stores
#endif
  }

  uint32_t copies_ = 0;
  double plain_ = 0.0;
  double stream_ = 0.0;
  bool is_stream_better_ = false;
};

}  // namespace dda
