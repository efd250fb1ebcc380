// all_gather: every rank stages a chunk of its part, and copies everybody's chunk from where it
// lies. One hop; a rank reads n - 1 parts, as any algorithm must.
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block>
DDA_DEVICE bool all_gather(Block& b, const Task& t) {
  for (uint64_t c = 0; c < t.chunks; ++c) {
    const Range mine = t.range(b.index(), t.in.count, c);
    b.stage(c, 0, t.in.base + t.offset(mine), t.bytes(mine));
    b.publish();
    if (!b.wait_all()) return false;
    b.deliver(t.out.at(b.rank()) + t.offset(mine), t.in.base + t.offset(mine), t.bytes(mine));
    for (int i = 1; i < b.size(); ++i) {
      const int p = b.neighbour(i);
      const Range r = t.range(b.index(), t.out.count_of(p), c);
      b.deliver(t.out.at(p) + t.offset(r), b.staged(p, c, 0, t.offset(r)), t.bytes(r));
    }
  }
  return true;
}

}  // namespace dda
