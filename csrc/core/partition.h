// How a message is cut: into the parts of blocks and ranks, and into chunks that fit a slot. Pure
// functions of what is equal on all ranks.
#pragma once

#include <cstdint>

#include "core/portable.h"

namespace dda {

// Boundaries fall on whole lines, so that two ranks never write to one cache line of a tensor that
// is aligned to one.
inline constexpr uint64_t kLineBytes = 64;
// What memory that is shared is a multiple of.
inline constexpr uint64_t kPageBytes = 4096;

struct Range {
  uint64_t begin = 0;
  uint64_t count = 0;
  DDA_SHARED uint64_t end() const { return begin + count; }
};

DDA_SHARED inline uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// The part of `whole` that is the turn of `index` of `n`: equal parts of whole lines, the last ones
// shorter or empty. `element` is the size of an element in bytes.
DDA_SHARED inline Range part_of(Range whole, int index, int n, uint64_t element) {
  const uint64_t line = element < kLineBytes ? kLineBytes / element : 1;
  const uint64_t each = round_up((whole.count + n - 1) / n, line);
  const uint64_t begin = each * index < whole.count ? each * index : whole.count;
  const uint64_t left = whole.count - begin;
  return {whole.begin + begin, left < each ? left : each};
}

// The elements of `all` that lie in chunk number `chunk` of `length` elements; may be empty.
DDA_SHARED inline Range chunk_of(Range all, uint64_t chunk, uint64_t length) {
  const uint64_t begin = chunk * length < all.count ? chunk * length : all.count;
  const uint64_t left = all.count - begin;
  return {all.begin + begin, left < length ? left : length};
}

// How many chunks of `length` cover `count` elements: at least one, since an empty call still
// exchanges its entry.
DDA_SHARED inline uint64_t chunks_of(uint64_t count, uint64_t length) {
  return count == 0 ? 1 : (count + length - 1) / length;
}

}  // namespace dda
