// reduce_scatter: every rank stages, chunk by chunk, the parts that are for others, and reduces its
// own part of everybody's input, in rank order. One hop; a rank reads n - 1 parts.
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block, class Reducer>
DDA_DEVICE bool reduce_scatter(Block& b, const Task& t, const Reducer& reducer) {
  const int me = b.rank();
  const uint64_t stride = t.stride();
  typename Block::Sources sources;
  for (uint64_t c = 0; c < t.chunks; ++c) {
    for (int i = reducer.scales() ? 0 : 1; i < b.size(); ++i) {
      const int p = b.neighbour(i);
      const Range r = t.range(b.index(), t.in.count_of(p), c);
      reducer.stage(b, c, p * stride, t.in.at(p) + t.offset(r), r.count, t.element);
    }
    b.publish();
    if (!b.wait_all()) return false;
    const Range mine = t.range(b.index(), t.in.count_of(me), c);
    // Of symmetric inputs, whose parts are equal and lie behind each other.
    const uint64_t in_tensor = me * t.in.count_of(me) * t.element + t.offset(mine);
    for (int p = 0; p < b.size(); ++p) {
      const bool own = p == me && !reducer.scales();
      sources[p] = own ? t.in.at(me) + t.offset(mine) : b.staged(p, c, me * stride, in_tensor);
    }
    reducer.reduce(t.out.base + t.offset(mine), sources, b.size(), mine.count);
  }
  return true;
}

}  // namespace dda
