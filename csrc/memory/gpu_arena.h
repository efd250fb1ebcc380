// Device memory that the ranks of a group share: a block of each rank, mapped by all.
//
// The peers map a block by CUDA's IPC handle, which each rank leaves in a record that it shares
// with them on the host. A block may not be freed while a peer has it mapped, and a captured graph
// may outlive its group: so what nobody on this rank uses any more goes to a *graveyard*, where the
// peers' blocks are unmapped at once and this rank's is freed when all peers have done likewise or
// have died.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "device/gpu/layout.h"
#include "memory/exchange.h"

namespace dda {

// Throws Error(kSystem), or kMemory where memory is what is missing, unless `status` (a
// cudaError_t) is success.
void check_gpu(int status, const char* what);

// Runs its scope with `device` current, and in a mode in which no capture of another stream is
// disturbed.
class GpuScope {
 public:
  explicit GpuScope(int device);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

 private:
  int before_ = -1;
  int mode_;
};

// The ranks' memory on the host, and their lives.
using Neighbours = std::shared_ptr<const std::vector<Neighbour>>;

// What a rank shows its peers of its block, in memory of the host.
struct GpuHandle {
  unsigned char ipc[64];        // a cudaIpcMemHandle_t
  uint64_t number;              // of a segment of symmetric memory
  std::atomic<uint32_t> freed;  // the rank has no tensor in the block any more
  std::atomic<uint32_t> unmapped;
};

class GpuShared {
 public:
  // Allocates a zeroed block of `bytes` and leaves its handle at `handle_at` of this rank's memory
  // on the host. Collective: `open` and `prove` come next.
  GpuShared(int device, int rank, uint64_t bytes, Neighbours neighbours, uint64_t handle_at);
  ~GpuShared();
  GpuShared(const GpuShared&) = delete;
  GpuShared& operator=(const GpuShared&) = delete;

  // Maps the peers' blocks and writes a word into each.
  void open(uint64_t nonce);
  // Whether each peer's word has come, and whether what this rank wrote can be read back.
  void prove(uint64_t nonce);

  int device() const { return device_; }
  uint64_t bytes() const { return bytes_; }
  unsigned char* base() const { return bases_[rank_]; }
  unsigned char* base(int p) const { return bases_[p]; }
  const Neighbours& neighbours() const { return neighbours_; }
  GpuHandle& handle(int p) const {
    return *reinterpret_cast<GpuHandle*>((*neighbours_)[p].segment.data() + handle_at_);
  }

  // Frees of the graveyard what can go now.
  static void sweep();

 protected:
  void* pinned_ = nullptr;  // memory of the host that goes with the block

 private:
  const int device_, rank_;
  const uint64_t bytes_, handle_at_;
  Neighbours neighbours_;
  std::vector<unsigned char*> bases_;
};

// What a rank shows its peers of a group, in memory of the host that all share.
struct GpuRecord {
  static constexpr int kLogged = 64;
  struct Call {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> signature;
  };

  GpuHandle handle;               // of its arena
  unsigned char device[16];       // its GPU's UUID
  int32_t resident;               // blocks that this GPU holds at a time
  std::atomic<uint64_t> calls;    // issued by its host so far
  Call log[kLogged];              // the last ones; number n at n % kLogged
  std::atomic<uint64_t> refused;  // the number of the last call that it could not make
  char why[200];
};

// The arenas of a group, and a few words in memory of the host that kernels and host both see.
class GpuArenas final : public GpuShared {
 public:
  // With the counters where they stand after `calls_before` calls.
  GpuArenas(int device, int rank, const GpuLayout& layout, Neighbours neighbours,
            uint64_t record_at, uint32_t calls_before);

  GpuHostWords* words() const { return static_cast<GpuHostWords*>(pinned_); }
  GpuRecord& record(int p) const {
    return *reinterpret_cast<GpuRecord*>((*neighbours())[p].segment.data() + record_at_);
  }

 private:
  const uint64_t record_at_;
};

}  // namespace dda
