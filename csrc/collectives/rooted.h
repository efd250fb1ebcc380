// The calls in which data flows from or to one rank: broadcast and scatter (one writer, the root),
// gather (one reader, the root). A writer goes round the ring of its `slots()`; it fills a slot
// again when every reader has published that it is done with the chunk that lay there, one round
// ago. At the end it waits for the last chunk but one; the last is safe behind the next call's
// entries. Chunks are small, so that writer and readers work at the same time.
#pragma once

#include "collectives/task.h"

namespace dda {

// From the root to all: `part` says which part of the root's input goes to rank p (broadcast: the
// whole for everybody; scatter: part p). In a slot the parts lie `stride` bytes apart.
template <class Block>
DDA_DEVICE bool from_root(Block& b, const Task& t, bool is_scatter) {
  const bool is_root = b.rank() == t.root;
  const uint64_t stride = is_scatter ? t.stride() : 0;
  for (uint64_t c = 0; c < t.chunks; ++c) {
    const uint32_t announced = b.first() + static_cast<uint32_t>(c);
    if (is_root) {
      if (c >= b.slots() && !b.wait_all(announced - b.slots())) return false;
      for (int i = 1; i < (is_scatter ? b.size() : 2); ++i) {
        const int p = b.neighbour(i);
        const Range r = t.range(b.index(), t.in.count_of(p), c);
        b.stage(c, p * stride, t.in.at(p) + t.offset(r), t.bytes(r));
      }
    }
    if (is_root || announced == 1) b.publish();
    if (announced == 1 && !b.wait_all()) return false;
    const Range r = t.range(b.index(), t.out.count, c);
    if (is_root) {
      b.deliver(t.out.base + t.offset(r), t.in.at(b.rank()) + t.offset(r), t.bytes(r));
      continue;
    }
    if (!b.wait(t.root, announced)) return false;
    b.deliver(t.out.base + t.offset(r), b.staged(t.root, c, b.rank() * stride, t.offset(r)),
              t.bytes(r));
    if (announced > 1) b.publish();
  }
  return !is_root || t.chunks < 2 || b.wait_all(b.first() + static_cast<uint32_t>(t.chunks) - 2);
}

// From all to the root: gather.
template <class Block>
DDA_DEVICE bool to_root(Block& b, const Task& t) {
  const bool is_root = b.rank() == t.root;
  for (uint64_t c = 0; c < t.chunks; ++c) {
    const uint32_t announced = b.first() + static_cast<uint32_t>(c);
    const Range mine = t.range(b.index(), t.in.count, c);
    if (!is_root) {
      if (c >= b.slots() && !b.wait(t.root, announced - b.slots())) return false;
      b.stage(c, 0, t.in.base + t.offset(mine), t.bytes(mine));
    }
    if (!is_root || announced == 1) b.publish();
    if (announced == 1 && !b.wait_all()) return false;
    if (!is_root) continue;
    b.deliver(t.out.at(t.root) + t.offset(mine), t.in.base + t.offset(mine), t.bytes(mine));
    for (int i = 1; i < b.size(); ++i) {
      const int p = b.neighbour(i);
      const Range r = t.range(b.index(), t.out.count_of(p), c);
      if (!b.wait(p, announced)) return false;
      b.deliver(t.out.at(p) + t.offset(r), b.staged(p, c, 0, t.offset(r)), t.bytes(r));
    }
    if (announced > 1) b.publish();
  }
  return is_root || t.chunks < 2 || b.wait(t.root, b.first() + static_cast<uint32_t>(t.chunks) - 2);
}

}  // namespace dda
