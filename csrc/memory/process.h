// Reading the memory of another process: one copy, made by the kernel (cross-memory attach).
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace dda {

// Copies `bytes` bytes at `from`, an address in process `pid`, to `to`. Returns 0, or the errno of
// what was in the way: ESRCH where the process is gone, EPERM or ENOSYS where the host forbids it.
int read_process(pid_t pid, uint64_t from, void* to, uint64_t bytes);

}  // namespace dda
