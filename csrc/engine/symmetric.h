// Symmetric memory: what ranks allocate together so that each can address everybody's.
//
// A rank may free its part while a peer still passes its own part to a call, which this rank must
// then be able to read. So a mapping goes only when every rank has freed its part: the last line of
// each part says whether its owner has.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dda/group.h"
#include "engine/watch.h"
#include "memory/exchange.h"

namespace dda {

// All ranks' parts, mapped here.
struct SymmetricParts {
  std::vector<Neighbour> of;
  int rank = 0;
  size_t bytes = 0;  // that the user asked for
  uint64_t segment = 0;
  const uint32_t made_in = fork_generation();

  unsigned char* data() const { return of[rank].segment.data(); }
  std::atomic<uint32_t>& freed(int r) const;
};

struct SymmetricMemory {
  std::shared_ptr<SymmetricParts> parts;
  ~SymmetricMemory();
};

class SymmetricHeap {
 public:
  std::shared_ptr<SymmetricMemory> allocate(Bootstrap& store, int rank, int size, size_t bytes,
                                            milliseconds timeout, Watch& watch);
  // The place of `bytes` bytes at `data` if they lie in memory of this heap, else 0.
  uint64_t place_of(const void* data, uint64_t bytes) const;
  // Unmaps what every rank has freed.
  void collect(Watch& watch);

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<SymmetricParts>> all_;
};

}  // namespace dda
