// One hop by push: every rank stores what it has for a peer straight into that peer's memory, where
// the data is its own signal (device/gpu/push.h), and takes what arrives in rank order. No barrier.
// For small messages on GPUs; a part must fit a region.
//
// Between ranks that have nothing for each other an empty pack goes, so that everybody hears from
// everybody in each call: three slots are enough because nobody gets two calls ahead.
//
// After the one-shot "Lamport" allreduce of TensorRT-LLM, with a NaN for its -0, so that every
// number survives, and with packets that carry a flag for what has no spare pattern.
#pragma once

#include "collectives/task.h"

namespace dda {

// Data flows between two ranks if `from_all` or the sender is the root, and `to_all` or the
// receiver is the root.
struct Flow {
  bool from_all, to_all;
  DDA_DEVICE bool goes(int from, int to, int root) const {
    return (from_all || from == root) && (to_all || to == root);
  }
};

// Sends this rank's part for each peer, pack by pack, as `read(from, left)` gives them.
template <class Block, class Read>
DDA_DEVICE void push_parts(Block& b, const Task& t, const Flow& flow, Read read) {
  for (int k = 1; k < b.size(); ++k) {
    const int p = b.neighbour(k);
    const Range r = t.range(b.index(), t.in.count_of(t.in.whole ? b.rank() : p), 0);
    const uint64_t bytes = flow.goes(b.rank(), p, t.root) ? t.bytes(r) : 0;
    const unsigned char* const from = t.in.at(p) + t.offset(r);
    for (uint32_t i = b.thread(); i < b.packs_of(bytes); i += b.threads()) {
      b.send(p, i, read(from + i * Block::kPayload, bytes - i * Block::kPayload));
    }
  }
}

// all_reduce, reduce_scatter and, with `flow` to the root alone, reduce. Its own part a rank reads
// again where it needs it, from its caches.
template <class Block, class Reducer>
DDA_DEVICE bool reduce_push(Block& b, const Task& t, const Flow& flow, const Reducer& reducer) {
  constexpr int kPayload = Block::kPayload;
  const auto read = [&](const unsigned char* from, uint64_t left) {
    const auto pack = reducer.template read<kPayload>(from, left);
    return reducer.scales() ? reducer.template scaled<kPayload>(pack) : pack;
  };
  push_parts(b, t, flow, read);
  b.clear_last();
  const int me = b.rank();
  const Range r = t.range(b.index(), t.in.count_of(me), 0);
  const uint64_t bytes = flow.to_all || me == t.root ? t.bytes(r) : 0;
  const uint32_t packs = b.packs_of(bytes);
  for (uint32_t i = b.thread(); i < packs; i += b.threads()) {
    const uint64_t at = t.offset(r) + i * kPayload;
    const uint64_t left = bytes - i * kPayload;
    typename Reducer::template Sum<kPayload> sum;
    for (int p = 0; p < b.size(); ++p) {
      auto pack = p == me ? read(t.in.at(me) + at, left) : b.nothing();
      if (p != me && !b.receive(p, i, &pack)) return false;
      reducer.template include<kPayload>(sum, pack, p);
    }
    reducer.template write<kPayload>(t.out.base + at, sum, b.size(), left);
  }
  b.end(packs);
  return true;
}

// all_gather, all_to_all, broadcast, scatter, gather; and barrier, whose parts are empty.
template <class Block>
DDA_DEVICE bool move_push(Block& b, const Task& t, const Flow& flow) {
  constexpr int kPayload = Block::kPayload;
  push_parts(b, t, flow,
             [](const unsigned char* from, uint64_t left) { return Block::read(from, left); });
  b.clear_last();
  uint32_t most = 1;
  for (int k = 0; k < b.size(); ++k) {
    const int p = b.neighbour(k);
    const Range r = t.range(b.index(), t.out.count_of(p), 0);
    const uint64_t bytes = flow.goes(p, b.rank(), t.root) ? t.bytes(r) : 0;
    unsigned char* const to = t.out.at(p) + t.offset(r);
    if (k == 0) {
      b.copy(to, t.in.at(p) + t.offset(r), bytes);
      continue;
    }
    const uint32_t packs = b.packs_of(bytes);
    for (uint32_t i = b.thread(); i < packs; i += b.threads()) {
      auto pack = b.nothing();
      if (!b.receive(p, i, &pack)) return false;
      Block::write(to + i * kPayload, pack, bytes - i * kPayload);
    }
    most = packs > most ? packs : most;
  }
  b.end(most);
  return true;
}

}  // namespace dda
