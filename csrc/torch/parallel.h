// torch's threads, lent to the engine for large messages.
#pragma once

#include <ATen/Parallel.h>

#include <sched.h>

#include <algorithm>

namespace dda {

// GroupOptions::parallel.
inline void parallel_over_torch(int n, void (*body)(int, void*), void* arg) {
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(static_cast<int>(i), arg);
  });
}

// What torch uses, but no more than one thread a core when `ranks` processes share the machine.
inline int threads_for(int ranks) {
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  const int cores = known ? CPU_COUNT(&allowed) : 1;
  return std::max(1, std::min(at::get_num_threads(), cores / ranks));
}

}  // namespace dda
