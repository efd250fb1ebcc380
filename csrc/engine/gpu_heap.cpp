#include "engine/gpu_heap.h"

#include <string>

namespace dda {

uint64_t GpuHeap::next() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint64_t number = 1; number <= kMaxGpuSegments; ++number) {
    if (segments_.count(number) == 0) return number;
  }
  throw Error(
      Error::Kind::kMemory,
      "a group has up to " + std::to_string(kMaxGpuSegments) +
          " symmetric tensors on GPUs at a time, each rank as long as any has it; free some");
}

void GpuHeap::add(uint64_t number, std::shared_ptr<GpuShared> segment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_used_ = true;
  segments_[number] = std::move(segment);
}

void GpuHeap::collect(int size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = segments_.begin(); it != segments_.end();) {
    bool is_free = true;
    for (int p = 0; p < size; ++p) {
      is_free &= it->second->handle(p).freed.load(std::memory_order_acquire) != 0;
    }
    it = is_free ? segments_.erase(it) : std::next(it);
  }
}

void GpuHeap::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  segments_.clear();
}

uint64_t GpuHeap::place_of(const void* data, uint64_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* const at = static_cast<const unsigned char*>(data);
  for (const auto& [number, segment] : segments_) {
    const unsigned char* const base = segment->base();
    if (at >= base && at + bytes <= base + segment->bytes()) {
      return GpuPlace::of(number, static_cast<uint64_t>(at - base));
    }
  }
  return 0;
}

GpuHeap::Segments GpuHeap::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return segments_;
}

}  // namespace dda
