// Flat all_reduce by push: every rank stores its whole part into every peer's memory, where the
// data is its own signal (device/gpu/push.h), and reduces what arrives in rank order. One hop and
// no barrier; its own part a rank reads again, from its caches. For small messages on GPUs.
//
// After the one-shot "Lamport" allreduce of TensorRT-LLM, with a NaN for its -0, so that every
// number survives, and with packets that carry a flag for what has no spare pattern.
#pragma once

#include "collectives/task.h"

namespace dda {

template <class Block, class Reducer>
DDA_DEVICE bool all_reduce_push(Block& b, const Task& t, const Reducer& reducer) {
  constexpr int kPayload = Block::kPayload;
  const Range r = t.range(b.index(), t.in.count, 0);
  const unsigned char* const in = t.in.base + t.offset(r);
  unsigned char* const out = t.out.base + t.offset(r);
  const uint64_t bytes = t.bytes(r);
  const auto packs = static_cast<uint32_t>((bytes + kPayload - 1) / kPayload);
  const auto own = [&](uint32_t i) {
    const auto pack = reducer.template read<kPayload>(in + i * kPayload, bytes - i * kPayload);
    return reducer.scales() ? reducer.template scaled<kPayload>(pack) : pack;
  };

  for (uint32_t i = b.thread(); i < packs; i += b.threads()) {
    const auto pack = own(i);
    for (int k = 1; k < b.size(); ++k) b.send(b.neighbour(k), i, pack);
  }
  b.clear_last();
  for (uint32_t i = b.thread(); i < packs; i += b.threads()) {
    typename Reducer::template Sum<kPayload> sum;
    for (int p = 0; p < b.size(); ++p) {
      auto pack = own(i);
      if (p != b.rank() && !b.receive(p, i, &pack)) return false;
      reducer.template include<kPayload>(sum, pack, p);
    }
    reducer.template write<kPayload>(out + i * kPayload, sum, b.size(), bytes - i * kPayload);
  }
  b.end(packs);
  return true;
}

}  // namespace dda
