#include "device/cpu_ops.h"

#include <cstring>

namespace dda {

const CpuOps* find_cpu_ops(const char* name) {
  const bool any = name == nullptr || std::strcmp(name, "auto") == 0;
  const auto wanted = [&](const CpuOps& ops) { return any || std::strcmp(name, ops.name) == 0; };
#if defined(__x86_64__) && !defined(DDA_ONLY_BASELINE)
  if (wanted(avx512::kOps) && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return &avx512::kOps;
  }
  if (wanted(avx2::kOps) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return &avx2::kOps;
  }
#endif
  return wanted(baseline::kOps) ? &baseline::kOps : nullptr;
}

}  // namespace dda
