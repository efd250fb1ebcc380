#include "engine/symmetric.h"

#include <algorithm>

namespace dda {

std::atomic<uint32_t>& SymmetricParts::freed(int r) const {
  const Segment& s = of[r].segment;
  return *reinterpret_cast<std::atomic<uint32_t>*>(s.data() + s.bytes() - kLineBytes);
}

SymmetricMemory::~SymmetricMemory() {
  // A forked child lets go of its copy; the parent still has the memory.
  if (fork_generation() != parts->made_in) return;
  parts->freed(parts->rank).store(1, std::memory_order_release);
}

void* data_of(const SymmetricMemory& memory) { return memory.parts->data(); }

std::shared_ptr<SymmetricMemory> SymmetricHeap::allocate(Bootstrap& store, int rank, int size,
                                                         size_t bytes, milliseconds timeout,
                                                         Watch& watch) {
  const uint64_t whole = round_up(bytes + kLineBytes, kPageBytes);
  const std::string terms =
      "symmetric " + std::to_string(bytes) + " number " + std::to_string(watch.next_segment());
  Exchange exchange(store, rank, size, timeout, terms, 0, [&] { return watch.is_whole(); });
  auto parts = std::make_shared<SymmetricParts>();
  parts->of = exchange.trade(
      whole, [&] { return Segment::create(whole, "dda-symmetric"); },
      [](const std::vector<Neighbour>&) {});
  parts->rank = rank;
  parts->bytes = bytes;

  collect(watch);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<unsigned char*> bases;
  for (const Neighbour& n : parts->of) bases.push_back(n.segment.data());
  parts->segment = watch.add_segment(std::move(bases), bytes);
  all_.push_back(parts);
  auto memory = std::make_shared<SymmetricMemory>();
  memory->parts = std::move(parts);
  return memory;
}

void SymmetricHeap::collect(Watch& watch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_free = [&](const std::shared_ptr<SymmetricParts>& parts) {
    for (size_t r = 0; r < parts->of.size(); ++r) {
      if (parts->freed(static_cast<int>(r)).load(std::memory_order_acquire) == 0) return false;
    }
    watch.drop_segment(parts->segment);
    return true;
  };
  all_.erase(std::remove_if(all_.begin(), all_.end(), is_free), all_.end());
}

uint64_t SymmetricHeap::place_of(const void* data, uint64_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* const at = static_cast<const unsigned char*>(data);
  for (const auto& parts : all_) {
    const unsigned char* const base = parts->data();
    if (at >= base && at + bytes <= base + parts->bytes) {
      return Place::symmetric(parts->segment, static_cast<uint64_t>(at - base));
    }
  }
  return 0;
}

}  // namespace dda
