// One hop in which the data is its own signal: what a rank has for a peer it stores straight into
// the peer's region for it, pack by pack, and each thread polls its own packs until they are there.
// No barrier, no fence.
//
// How a reader knows that a pack has arrived is the *wire*:
//   DataWire  floats. A slot is cleared to a NaN pattern that no sender sends; units of 4 bytes (8
//             for doubles), each written in one access, are compared bit by bit.
//   FlagWire  any bytes. Half of a packet is payload; each half of it, written in one access,
//             carries the number of the call.
//
// Calls take the block's three slots in turn. A peer that is one call ahead fills the next one, so
// it must be clear by then: during a call the slot of the call before is cleared, and the end of
// the kernel orders that before the next call's data, without which no peer gets two calls ahead.
#pragma once

#include "device/gpu/block.h"

namespace dda {

template <class Element>
struct DataWire {
  static constexpr int kPayload = kPackBytes;
  static constexpr uint32_t kMissing = 0xffffffff;
  static constexpr bool kWide = sizeof(typename Element::Unit) == 8;  // units of 8 bytes

  __device__ static uint64_t base(const GpuLayout& l, uint32_t slot, int source) {
    return l.push_at(blockIdx.x, slot, source);
  }
  __device__ static uint32_t& calls(BlockState& state) { return state.pushes; }
  __device__ static uint32_t& slot(BlockState& state) { return state.push_slot; }
  // What is left of the call before in this rank's regions, and what clears it.
  __device__ static uint32_t packs_to_clear(uint32_t, uint32_t dirty, uint32_t) { return dirty; }
  __device__ static uint32_t cleared(uint32_t) { return kMissing; }

  __device__ static void send(gpu::Pack* to, gpu::Pack v, uint32_t) {
    if constexpr (kWide) {
      for (int k = 0; k < 4; k += 2) {
        if ((v.word[k] & v.word[k + 1]) == kMissing) v.word[k + 1] = Element::kNanPattern;
      }
      gpu::store_halves(to, v);
    } else {
      for (uint32_t& word : v.word) word = word == kMissing ? Element::kNanPattern : word;
      gpu::store_relaxed(to, v);
    }
  }
  __device__ static bool receive(const gpu::Pack* from, uint32_t, gpu::Pack* v) {
    if constexpr (kWide) {
      *v = gpu::load_halves(from);
      return (v->word[0] & v->word[1]) != kMissing && (v->word[2] & v->word[3]) != kMissing;
    } else {
      *v = gpu::load_relaxed(from);
      return v->word[0] != kMissing && v->word[1] != kMissing && v->word[2] != kMissing &&
             v->word[3] != kMissing;
    }
  }
};

struct FlagWire {
  static constexpr int kPayload = kPackBytes / 2;

  __device__ static uint64_t base(const GpuLayout& l, uint32_t slot, int source) {
    return l.packets_at(blockIdx.x, slot, source);
  }
  __device__ static uint32_t& calls(BlockState& state) { return state.packet_calls; }
  __device__ static uint32_t& slot(BlockState& state) { return state.packet_slot; }
  // A flag tells 2^32 calls apart; what a larger call left behind goes every 2^28 calls.
  __device__ static uint32_t packs_to_clear(uint32_t call, uint32_t, uint32_t all) {
    return call % (1u << 28) < kGenerations ? all : 0;
  }
  __device__ static uint32_t cleared(uint32_t call) { return ~(call - 1); }

  __device__ static void send(gpu::Pack* to, const gpu::Pack& v, uint32_t call) {
    gpu::store_halves(to, {{v.word[0], ~call, v.word[1], ~call}});
  }
  __device__ static bool receive(const gpu::Pack* from, uint32_t call, gpu::Pack* v) {
    const gpu::Pack packet = gpu::load_halves(from);
    *v = {{packet.word[0], packet.word[2], 0, 0}};
    return packet.word[1] == ~call && packet.word[3] == ~call;
  }
};

template <class Wire>
class PushBlock {
 public:
  static constexpr int kPayload = Wire::kPayload;

  __device__ explicit PushBlock(const GpuCall& call)
      : call_(call),
        watch_(call),
        state_(reinterpret_cast<BlockState*>(watch_.own() + call.layout.states)[blockIdx.x]),
        number_(Wire::calls(state_)),
        slot_(Wire::slot(state_)),
        last_slot_((slot_ + kGenerations - 1) % kGenerations),
        dirty_(state_.dirty[last_slot_]) {}

  __device__ int rank() const { return call_.rank; }
  __device__ int size() const { return call_.layout.size; }
  __device__ int index() const { return blockIdx.x; }
  __device__ uint32_t thread() const { return threadIdx.x; }
  __device__ uint32_t threads() const { return blockDim.x; }
  __device__ int neighbour(int i) const { return (rank() + i) % size(); }

  // At least one: an empty pack says that its sender has come.
  __device__ static uint32_t packs_of(uint64_t bytes) {
    return bytes == 0 ? 1 : static_cast<uint32_t>((bytes + kPayload - 1) / kPayload);
  }
  __device__ static gpu::Pack nothing() { return {}; }
  // A pack of the caller's memory, of which `left` bytes are there.
  __device__ static gpu::Pack read(const void* from, uint64_t left) {
    return gpu::read_pack<unsigned char, kPayload>(from, left);
  }
  __device__ static void write(void* to, const gpu::Pack& pack, uint64_t left) {
    gpu::write_pack<unsigned char, kPayload>(to, pack, left);
  }
  __device__ void copy(void* dst, const void* src, uint64_t bytes) const {
    if (dst != src && bytes != 0) gpu::copy_bytes(dst, src, bytes);
  }

  // Pack `i` of what this block has for peer p, and of what it gets from peer p.
  __device__ void send(int p, uint32_t i, const gpu::Pack& pack) const {
    Wire::send(region(p, slot_, rank()) + i, pack, number_);
  }
  __device__ bool receive(int p, uint32_t i, gpu::Pack* pack) {
    const gpu::Pack* const from = region(rank(), slot_, p) + i;
    return watch_.wait(p, i, [&] { return Wire::receive(from, number_, pack); });
  }

  // Clears what the call before left in this rank's regions.
  __device__ void clear_last() const {
    const uint32_t packs =
        Wire::packs_to_clear(number_, dirty_, call_.layout.packet_bytes / kPackBytes);
    const uint32_t w = Wire::cleared(number_);
    for (int s = 0; s < size(); ++s) {
      for (uint32_t i = thread(); s != rank() && i < packs; i += threads()) {
        *reinterpret_cast<uint4*>(region(rank(), last_slot_, s) + i) = {w, w, w, w};
      }
    }
  }
  // `packs`: how many came from the peer that sent most.
  __device__ void end(uint32_t packs) const {
    __syncthreads();
    if (thread() != 0) return;
    Wire::calls(state_) = number_ + 1;
    Wire::slot(state_) = (slot_ + 1) % kGenerations;
    if (Wire::kPayload == kPackBytes) state_.dirty[slot_] = packs;
  }

 private:
  __device__ gpu::Pack* region(int owner, uint32_t slot, int source) const {
    return reinterpret_cast<gpu::Pack*>(call_.arena[owner] +
                                        Wire::base(call_.layout, slot, source));
  }

  const GpuCall& call_;
  GpuWatch watch_;
  BlockState& state_;
  const uint32_t number_;
  const uint32_t slot_, last_slot_;
  const uint32_t dirty_;
};

}  // namespace dda
