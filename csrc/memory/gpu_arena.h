// The device memory of one group: this rank's arena, its peers' arenas mapped here, and a few words
// in memory of the host that kernels and host both see.
//
// The peers map an arena by CUDA's IPC handle, which each rank leaves in the record that it shares
// with them on the host. An arena may not be freed while a peer has it mapped, and a captured graph
// may outlive its group: so what nobody on this rank uses any more goes to a *graveyard*, where it
// is unmapped at once and freed when all peers have done likewise or have died.
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

// What a rank shows its peers, in memory of the host that all share.
struct GpuRecord {
  static constexpr int kLogged = 64;
  struct Call {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> signature;
  };

  unsigned char handle[64];  // cudaIpcMemHandle_t of its arena
  unsigned char device[16];  // its GPU's UUID
  int32_t resident;          // blocks that this GPU holds at a time
  std::atomic<uint32_t> unmapped;
  std::atomic<uint64_t> calls;    // issued by its host so far
  Call log[kLogged];              // the last ones; number n at n % kLogged
  std::atomic<uint64_t> refused;  // the number of the last call that it could not make
  char why[200];
};

// The ranks' records and lives: of use to a group longer than its arenas.
using Neighbours = std::shared_ptr<const std::vector<Neighbour>>;

class GpuArenas {
 public:
  // Allocates this rank's arena, with its counters where they stand after `calls_before` calls,
  // and leaves its handle in the record. Collective: `open` comes next.
  GpuArenas(int device, int rank, const GpuLayout& layout, Neighbours neighbours,
            uint64_t record_at, uint32_t calls_before);
  // Frees what is this rank's alone: see graveyard above.
  ~GpuArenas();
  GpuArenas(const GpuArenas&) = delete;
  GpuArenas& operator=(const GpuArenas&) = delete;

  // Maps the peers' arenas and writes a word into each.
  void open(uint64_t nonce);
  // Whether each peer's word has come, and whether what this rank wrote can be read back.
  void prove(uint64_t nonce);

  unsigned char* base(int p) const { return bases_[p]; }
  GpuHostWords* words() const { return words_; }
  GpuRecord& record(int p) const {
    return *reinterpret_cast<GpuRecord*>((*neighbours_)[p].segment.data() + record_at_);
  }
  const Neighbours& neighbours() const { return neighbours_; }

  // Frees of the graveyard what can go now.
  static void sweep();

 private:
  void begin(uint32_t calls_before);

  int rank_, device_;
  GpuLayout layout_;
  uint64_t record_at_;
  Neighbours neighbours_;
  std::vector<unsigned char*> bases_;
  GpuHostWords* words_ = nullptr;
};

}  // namespace dda
