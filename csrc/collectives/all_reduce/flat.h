// Flat all_reduce: every rank stages its whole chunk where all can read it, and reduces everybody's
// chunk itself, in rank order. One hop; each rank reads (n - 1) times the message. For small
// messages, and for large ones between two ranks that cannot write to each other's output.
//
// After DeepSpeed's and vLLM's shared-memory allreduce, without their second barrier (device/cpu.h
// says why it is not needed).
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block, class Reducer>
DDA_DEVICE bool all_reduce_flat(Block& b, const Task& t, const Reducer& reducer) {
  const unsigned char* const in = t.in.base;
  typename Block::Sources sources;
  for (uint64_t c = 0; c < t.chunks; ++c) {
    const Range r = t.range(b.index(), t.in.count, c);
    reducer.stage(b, c, 0, in + t.offset(r), r.count, t.element);
    b.publish();
    if (!b.wait_all()) return false;
    for (int p = 0; p < b.size(); ++p) {
      const bool own = p == b.rank() && !reducer.scales();
      sources[p] = own ? in + t.offset(r) : b.staged(p, c, 0, t.offset(r));
    }
    reducer.reduce(t.out.base + t.offset(r), sources, b.size(), r.count);
  }
  return true;
}

}  // namespace dda
