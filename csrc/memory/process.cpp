#include "memory/process.h"

#include <sys/uio.h>

#include <cerrno>

namespace dda {

int read_process(pid_t pid, uint64_t from, void* to, uint64_t bytes) {
  auto* at = static_cast<unsigned char*>(to);
  while (bytes != 0) {
    const iovec local = {at, bytes};
    const iovec remote = {reinterpret_cast<void*>(from), bytes};
    const ssize_t got = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0) return errno;
    if (got == 0) return EFAULT;
    at += got;
    from += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return 0;
}

}  // namespace dda
