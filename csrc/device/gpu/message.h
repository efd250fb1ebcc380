// Messages between two GPUs. The receiver keeps slots for every source; a sender stores its message
// there, chunk by chunk, and the receiver copies it from there. A message that fits the slots is
// therefore sent before anybody receives it.
//
// Each block of a *channel*, which is one direction between two ranks, takes every so manieth chunk
// and has slots and counters of its own. The counters count on for ever, so messages of one channel
// follow each other without a word. With a chunk's arrival comes the length of its message, which
// the receiver compares with what it expects.
#pragma once

#include "device/gpu/block.h"

namespace dda {

class GpuChannel {
 public:
  __device__ explicit GpuChannel(const GpuCall& call)
      : call_(call),
        peer_(call.task.root),
        bytes_(call.task.in.count * call.task.element),
        watch_(call),
        mine_(state(call.rank, peer_)),
        theirs_(state(peer_, call.rank)) {}

  __device__ void send() {
    uint32_t sent = mine_.sent;
    for (uint64_t at = first(); at == 0 || at < bytes_; at += stride()) {
      const auto has_room = [&] {
        return sent - gpu::load_acquire(&mine_.drained) < kChannelSlots;
      };
      if (!wait(sent, has_room)) return;
      gpu::copy_bytes(slot(peer_, call_.rank, sent), call_.task.in.base + at, length(at));
      if (threadIdx.x == 0) theirs_.length[sent % kChannelSlots] = bytes_;
      tell(&theirs_.arrived, ++sent);
    }
    if (threadIdx.x == 0) mine_.sent = sent;
  }

  __device__ void receive() {
    uint32_t taken = mine_.taken;
    for (uint64_t at = first(); at == 0 || at < bytes_; at += stride()) {
      const auto has_come = [&] { return gpu::load_acquire(&mine_.arrived) != taken; };
      if (!wait(taken, has_come) || !is_expected(taken)) return;
      gpu::copy_bytes(call_.task.out.base + at, slot(call_.rank, peer_, taken), length(at));
      tell(&theirs_.drained, ++taken);
    }
    if (threadIdx.x == 0) mine_.taken = taken;
  }

 private:
  __device__ uint64_t first() const { return blockIdx.x * kChannelSlotBytes; }
  __device__ uint64_t stride() const { return gridDim.x * kChannelSlotBytes; }
  __device__ uint64_t length(uint64_t at) const {
    const uint64_t left = bytes_ - at;
    return left < kChannelSlotBytes ? left : kChannelSlotBytes;
  }
  __device__ ChannelState& state(int owner, int peer) const {
    return *reinterpret_cast<ChannelState*>(call_.arena[owner] +
                                            call_.layout.channel_at(peer, blockIdx.x));
  }
  __device__ unsigned char* slot(int owner, int source, uint32_t chunk) const {
    return call_.arena[owner] + call_.layout.message_at(source, blockIdx.x, chunk % kChannelSlots);
  }
  template <class Ready>
  __device__ bool wait(uint32_t chunk, Ready ready) {
    return gpu::all_of_block(threadIdx.x != 0 || watch_.wait(peer_, chunk, ready));
  }
  __device__ bool is_expected(uint32_t chunk) {
    const uint64_t sent = mine_.length[chunk % kChannelSlots];
    if (sent == bytes_) return true;
    if (threadIdx.x == 0) watch_.fail(GpuFailure::kLength, peer_, chunk, bytes_, sent);
    return false;
  }
  __device__ void tell(uint32_t* word, uint32_t value) const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    gpu::fence_release();
    gpu::store_relaxed(word, value);
  }

  const GpuCall& call_;
  const int peer_;
  const uint64_t bytes_;
  GpuWatch watch_;
  ChannelState& mine_;
  ChannelState& theirs_;
};

}  // namespace dda
