// What lies in a GPU arena, the block of device memory of one rank that every peer maps.
//
//   states     a block: how far it has come in all calls so far. Local
//   signals    a block: one word from each peer, written by the peer
//   push       a block: three slots with a region for each source, whose data is its own signal
//   packets    a block: three slots with a region for each source, of packets that carry a flag
//   ring       a block: staging slots, and a slot for results
//   channels   a peer, a block: how far its messages to and from the peer have come
//   messages   a source, a block: slots that the source fills with its messages
//   stop       set when the group is revoked
//   segments   where the symmetric memory of every rank is mapped here. Local
//
// A block's part does not depend on how many blocks a call has.
#pragma once

#include <cstdint>

#include "core/partition.h"
#include "core/portable.h"

namespace dda {

inline constexpr int kMaxGpuRanks = 16;
inline constexpr int kMaxGpuBlocks = 128;
inline constexpr int kPackBytes = 16;
inline constexpr int kMaxGpuSegments = 256;  // of symmetric memory
inline constexpr int kChannelBlocks = 8;
inline constexpr uint32_t kChannelSlots = 4;  // a power of two, so that counters may wrap
inline constexpr uint64_t kChannelSlotBytes = 32 << 10;
inline constexpr int kGenerations = 3;  // of push slots: filled, being read, being cleared

struct alignas(64) BlockState {
  uint32_t steps;         // publications
  uint32_t ring_slot;     // where the next chunk is staged
  uint32_t pushes;        // calls over the push slots
  uint32_t push_slot;     // … of the next one
  uint32_t packet_calls;  // likewise over the packet slots
  uint32_t packet_slot;
  uint32_t dirty[kGenerations];  // packs in each push slot that must be cleared
  uint32_t entries;              // calls that began with an exchange of places
  uint32_t busy;                 // a call is using this block
};

// A place in symmetric memory: its segment, from 1, and an offset. Means the same on every rank.
struct GpuPlace {
  static constexpr int kShift = 48;
  DDA_SHARED static uint64_t of(uint64_t segment, uint64_t offset) {
    return segment << kShift | offset;
  }
  DDA_SHARED static uint64_t segment(uint64_t place) { return place >> kShift; }
  DDA_SHARED static uint64_t offset(uint64_t place) {
    return place & ((uint64_t{1} << kShift) - 1);
  }
};

// The words that one block gets from its peers: the step in the low half, and in the high half some
// bits of the call's signature.
struct alignas(64) BlockSignals {
  uint64_t from[kMaxGpuRanks];
  uint64_t signature;         // of the call that the owner is in, whole
  uint64_t longest;           // all_to_all with uneven parts: the owner's longest
  int64_t row[kMaxGpuRanks];  // … and how much it sends to each
  // Where the peers' tensors lie, if they are symmetric, and else 0; see GpuPlace. Used in turn: a
  // peer may already be in its next call.
  uint64_t in[2][kMaxGpuRanks];
  uint64_t out[2][kMaxGpuRanks];
};

// One block's share of the messages between the owner and a peer, in chunks since the beginning.
struct alignas(64) ChannelState {
  uint32_t arrived;                // from the peer, which writes it
  uint32_t drained;                // by the peer, which writes it
  uint32_t sent;                   // to the peer
  uint32_t taken;                  // from the peer
  uint64_t length[kChannelSlots];  // of the message that the chunk in a slot belongs to, in bytes
};

struct GpuLayout {
  int size = 1;
  int blocks = 1;
  uint32_t push_bytes = 0;    // of one region
  uint32_t packet_bytes = 0;  // of one region, flags included
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  uint64_t states = 0, signals = 0, push = 0, packets = 0, ring = 0, stop = 0, segments = 0;
  uint64_t channels = 0, messages = 0, total = 0;

  GpuLayout() = default;
  GpuLayout(int n, int b, uint64_t slot) : size(n), blocks(b), slots(3), slot_bytes(slot) {
    // Two ranks: 1 MiB in 128 blocks. More: the same memory.
    push_bytes = static_cast<uint32_t>(round_up(static_cast<uint64_t>(kPushBytes) * 2 / n, 1024));
    packet_bytes = push_bytes;
    uint64_t at = 0;
    const auto take = [&](uint64_t bytes) {
      const uint64_t begin = at;
      at = round_up(at + bytes, 256);
      return begin;
    };
    states = take(blocks * sizeof(BlockState));
    signals = take(blocks * sizeof(BlockSignals));
    stop = take(sizeof(uint32_t));
    segments = take(kMaxGpuSegments * kMaxGpuRanks * sizeof(uint64_t));
    push = take(static_cast<uint64_t>(blocks) * kGenerations * size * push_bytes);
    packets = take(static_cast<uint64_t>(blocks) * kGenerations * size * packet_bytes);
    ring = take(blocks * (slots + 1) * slot_bytes);
    channels = take(static_cast<uint64_t>(size) * kChannelBlocks * sizeof(ChannelState));
    messages = take(size * kChannelBlocks * kChannelSlots * kChannelSlotBytes);
    total = at;
  }
  static constexpr uint32_t kPushBytes = 8 << 10;

  DDA_SHARED uint64_t push_at(int block, uint32_t generation, int source) const {
    return push + ((static_cast<uint64_t>(block) * kGenerations + generation) * size + source) *
                      push_bytes;
  }
  DDA_SHARED uint64_t packets_at(int block, uint32_t generation, int source) const {
    return packets + ((static_cast<uint64_t>(block) * kGenerations + generation) * size + source) *
                         packet_bytes;
  }
  DDA_SHARED uint64_t slot_at(int block, uint32_t slot) const {
    return ring + (static_cast<uint64_t>(block) * (slots + 1) + slot) * slot_bytes;
  }
  DDA_SHARED uint64_t segment_at(uint64_t number) const {  // a row of addresses, one a rank
    return segments + (number - 1) * kMaxGpuRanks * sizeof(uint64_t);
  }
  DDA_SHARED uint64_t channel_at(int peer, int block) const {
    return channels + (static_cast<uint64_t>(peer) * kChannelBlocks + block) * sizeof(ChannelState);
  }
  DDA_SHARED uint64_t message_at(int source, int block, uint32_t slot) const {
    const uint64_t share = static_cast<uint64_t>(source) * kChannelBlocks + block;
    return messages + (share * kChannelSlots + slot) * kChannelSlotBytes;
  }
  DDA_SHARED uint64_t result_at(int block) const { return slot_at(block, slots); }
};

// Why a kernel gave up, in memory of the host that the GPU writes.
struct GpuFailure {
  enum Kind : uint32_t { kNone, kTimeout, kMismatch, kRows, kBusy, kLength };
  uint32_t kind;  // written last
  int32_t peer;
  uint32_t step;
  uint32_t block;
  uint64_t mine;  // signatures; of kRows and kLength what is expected and what is sent
  uint64_t theirs;
};

// What kernels look at while they wait, in memory of the host.
struct GpuHostWords {
  GpuFailure failure;
  uint64_t budget_ns;  // of calls that give none
  uint32_t abort;
};

}  // namespace dda
