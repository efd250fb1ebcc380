// What every block of a call works on: where the parts of the tensors lie, and how they are cut.
#pragma once

#include <cstdint>

#include "core/partition.h"

namespace dda {

// One part for each rank, or the same whole tensor for all (`whole`).
struct Parts {
  unsigned char* base = nullptr;
  void* const* pointers = nullptr;    // a pointer a rank, or nullptr: behind each other from base
  const uint64_t* offsets = nullptr;  // in bytes from base, where the parts differ in length
  const int64_t* counts = nullptr;    // in elements, where they differ
  uint64_t count = 0;                 // in elements, where they do not
  uint64_t element = 1;               // bytes of one
  bool whole = false;

  DDA_SHARED uint64_t count_of(int p) const { return counts != nullptr ? counts[p] : count; }
  DDA_SHARED unsigned char* at(int p) const {
    if (whole) return base;
    if (pointers != nullptr) return static_cast<unsigned char*>(pointers[p]);
    return base + (offsets != nullptr ? offsets[p] : static_cast<uint64_t>(p) * count * element);
  }
};

struct Task {
  Parts in;
  Parts out;
  uint64_t element = 1;  // bytes of one element
  uint64_t chunk = 1;    // elements of a part in one chunk of one block
  uint64_t chunks = 1;   // of the block that has most
  uint64_t slot = 0;     // bytes that one chunk takes in a block's ring
  int blocks = 1;
  int root = 0;
  bool streams = false;  // the output is so large that it should not pass through the caches

  DDA_SHARED uint64_t bytes(const Range& range) const { return range.count * element; }
  DDA_SHARED uint64_t offset(const Range& range) const { return range.begin * element; }
  // Bytes between the parts of one chunk in a slot.
  DDA_SHARED uint64_t stride() const { return round_up(chunk * element, kLineBytes); }
  // The elements of a part of `count` that block `block` moves in chunk `c`; may be none.
  DDA_SHARED Range range(int block, uint64_t count, uint64_t c) const {
    return chunk_of(part_of({0, count}, block, blocks, element), c, chunk);
  }
};

}  // namespace dda
