// The symmetric memory of a group on GPUs: segments that every rank has mapped, so that a kernel
// can address a peer's tensor.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "memory/gpu_arena.h"

namespace dda {

// This rank's tensor in a segment; its end says that the rank needs it no more.
class GpuTensor {
 public:
  GpuTensor(std::shared_ptr<GpuShared> memory, int rank)
      : memory_(std::move(memory)), rank_(rank), made_in_(fork_generation()) {}
  ~GpuTensor() {
    if (made_in_ == fork_generation()) memory_->handle(rank_).freed.store(1);
  }
  GpuTensor(const GpuTensor&) = delete;
  GpuTensor& operator=(const GpuTensor&) = delete;
  void* data() const { return memory_->base(); }

 private:
  const std::shared_ptr<GpuShared> memory_;
  const int rank_;
  const uint32_t made_in_;
};

class GpuHeap {
 public:
  using Segments = std::map<uint64_t, std::shared_ptr<GpuShared>>;

  // The number of the next segment, from 1. Throws Error(kMemory) if all are taken.
  uint64_t next() const;
  void add(uint64_t number, std::shared_ptr<GpuShared> segment);
  // Lets go of segments in which no rank has a tensor any more.
  void collect(int size);
  void clear();

  // A GpuPlace for `bytes` bytes at `data` if all of them lie in a segment, else 0.
  uint64_t place_of(const void* data, uint64_t bytes) const;
  // Whether any segment was ever made: a call then begins with an exchange of places.
  bool is_used() const { return is_used_; }
  // For a graph, which may use any of them.
  Segments all() const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> is_used_{false};
  Segments segments_;  // by number
};

}  // namespace dda
