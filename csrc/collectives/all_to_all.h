// all_to_all: every rank stages, chunk by chunk, what each peer is to get, and copies from each
// peer what that peer has staged for it. Parts may differ for every pair; a pair that has nothing
// left exchanges empty chunks until the longest is through, so the number of chunks is the same for
// all. Large parts are one chunk that is not staged: peers fetch it from the rank's own memory.
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block>
DDA_DEVICE bool all_to_all(Block& b, const Task& t) {
  const int me = b.rank();
  const uint64_t stride = t.stride();
  for (uint64_t c = 0; c < t.chunks; ++c) {
    for (int i = 1; i < b.size(); ++i) {
      const int p = b.neighbour(i);
      const Range r = t.range(b.index(), t.in.count_of(p), c);
      b.stage(c, p * stride, t.in.at(p) + t.offset(r), t.bytes(r));
    }
    b.publish();
    if (!b.wait_all()) return false;
    const Range own = t.range(b.index(), t.out.count_of(me), c);
    b.deliver(t.out.at(me) + t.offset(own), t.in.at(me) + t.offset(own), t.bytes(own));
    for (int i = 1; i < b.size(); ++i) {
      const int p = b.neighbour(i);
      const Range r = t.range(b.index(), t.out.count_of(p), c);
      unsigned char* const to = t.out.at(p) + t.offset(r);
      if (!b.fetch(to, p, c, me * stride, t.offset(r), t.bytes(r))) return false;
    }
  }
  return true;
}

}  // namespace dda
