// Flat reduce: every rank stages its chunk, the root reduces them in rank order. Large messages of
// three ranks and more take the tree (all_reduce/tree.h), whose work is spread over all ranks.
//
// Only the root reads, so only the root says when a slot may be filled again: a rank stages chunk c
// when the root has published that it is done with chunk c - slots(), which lay in the same slot.
// At the end all wait for the last but one; the last is safe behind the next call's entries.
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block, class Reducer>
DDA_DEVICE bool reduce_flat(Block& b, const Task& t, const Reducer& reducer) {
  const bool is_root = b.rank() == t.root;
  typename Block::Sources sources;
  for (uint64_t c = 0; c < t.chunks; ++c) {
    const Range r = t.range(b.index(), t.in.count, c);
    const uint32_t announced = b.first() + static_cast<uint32_t>(c);
    const unsigned char* const in = t.in.base + t.offset(r);
    if (!is_root || reducer.scales()) {
      if (!is_root && c >= b.slots() && !b.wait(t.root, announced - b.slots())) return false;
      reducer.stage(b, c, 0, in, r.count, t.element);
    }
    if (!is_root || announced == 1) b.publish();
    if (announced == 1 && !b.wait_all()) return false;
    if (!is_root) continue;
    if (!b.wait_all(announced)) return false;
    for (int p = 0; p < b.size(); ++p) {
      sources[p] = p == t.root && !reducer.scales() ? in : b.staged(p, c, 0, t.offset(r));
    }
    reducer.reduce(t.out.base + t.offset(r), sources, b.size(), r.count);
    if (announced > 1) b.publish();
  }
  return is_root || t.chunks < 2 || b.wait(t.root, b.first() + static_cast<uint32_t>(t.chunks) - 2);
}

}  // namespace dda
