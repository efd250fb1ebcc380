// all_gather: every rank stages a chunk of its part, and copies everybody's chunk from where it
// lies. One hop; a rank reads n - 1 parts, as any algorithm must. Large parts are one chunk that is
// not staged: peers fetch it from the rank's own memory.
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
      if (!b.fetch(t.out.at(p) + t.offset(r), p, c, 0, t.offset(r), t.bytes(r))) return false;
    }
  }
  return true;
}

}  // namespace dda
