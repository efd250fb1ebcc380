// Tree all_reduce: a reduce-scatter and an all-gather, both by direct access. Each chunk is cut
// into one slice a rank. Rank r reduces everybody's slice r, in rank order, into its result slot;
// then everyone copies the slices together. Two hops; each rank reads about twice the message,
// however many ranks there are. Where all ranks' outputs are symmetric memory, rank r writes its
// slice into every output itself, and the second half falls away.
//
// With `receiver` only that rank gathers the slices: a reduce.
//
// One result slot is enough: rank r overwrites its slice of chunk c when everybody has published
// chunk c + 1, which they do after they have gathered chunk c.
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block, class Reducer>
DDA_DEVICE bool all_reduce_tree(Block& b, const Task& t, const Reducer& reducer,
                                int receiver = -1) {
  const unsigned char* const in = t.in.base;
  const bool writes_outputs = receiver < 0 && b.first() > 1 && b.all_outputs_shared();
  typename Block::Sources sources;
  for (uint64_t c = 0; c < t.chunks; ++c) {
    const Range whole = t.range(b.index(), t.in.count, c);
    const auto slice = [&](int p) { return part_of(whole, p, b.size(), t.element); };
    const auto in_slot = [&](const Range& s) { return (s.begin - whole.begin) * t.element; };

    for (int i = reducer.scales() ? 0 : 1; i < b.size(); ++i) {
      const Range s = slice(b.neighbour(i));
      reducer.stage(b, c, in_slot(s), in + t.offset(s), s.count, t.element);
    }
    b.publish();
    if (!b.wait_all()) return false;

    const Range mine = slice(b.rank());
    for (int p = 0; p < b.size(); ++p) {
      const bool own = p == b.rank() && !reducer.scales();
      sources[p] = own ? in + t.offset(mine) : b.staged(p, c, in_slot(mine), t.offset(mine));
    }
    unsigned char* const reduced =
        writes_outputs ? t.out.base + t.offset(mine) : b.result(b.rank()) + in_slot(mine);
    reducer.reduce(reduced, sources, b.size(), mine.count);
    for (int i = 1; writes_outputs && i < b.size(); ++i) {
      b.copy(b.output(b.neighbour(i), t.offset(mine)), reduced, t.bytes(mine));
    }
    b.publish();
    if (!b.wait_all()) return false;

    const bool gathers = !writes_outputs && (receiver < 0 || receiver == b.rank());
    for (int i = 0; gathers && i < b.size(); ++i) {
      const int p = b.neighbour(i);
      const Range s = slice(p);
      b.deliver(t.out.base + t.offset(s), b.result(p) + in_slot(s), t.bytes(s));
    }
  }
  return true;
}

}  // namespace dda
