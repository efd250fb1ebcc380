// What lies in an arena, the block of memory of one rank that every peer of the group maps.
//
//   control      who owns it, whether it was revoked or closed, the bell for sleepers
//   entries      two records by which the rank enters a call, used in turn
//   rows         two rows of a rank's counts, for all_to_all with uneven parts, and of addresses in
//                the rank's process, for calls whose parts are copied once
//   steps        one signal a block: how far the rank has come within a call
//   mailboxes    one ring a peer, for send and receive
//   slots        for each block a ring of staging slots and one result slot
//
// Only the owner writes, but for the revocation, the bell and the count of its sleepers, and how
// far a peer has read its mailbox. Signals stand on lines of their own, apart from data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/partition.h"

namespace dda {

inline constexpr int kMaxRanks = 256;
inline constexpr int kMaxBlocks = 32;
inline constexpr uint64_t kMagic = 0x31'61'72'65'6e'61'64'64;  // "ddarena1"

// Written once by whoever finds the group broken; see Failure.
struct alignas(kLineBytes) Revocation {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 there
  int32_t kind;
  int32_t by;
  int32_t culprit;
  char why[240];
};

struct Control {
  uint64_t magic;
  uint64_t nonce[2];  // of this incarnation of the group; proves that the mapping is shared
  int32_t rank;
  int32_t size;
  alignas(kLineBytes) std::atomic<uint32_t> closed;
  std::atomic<int32_t>
      waits_for;              // 1 + the rank that this one has waited for so long that it sleeps
  std::atomic<int32_t> core;  // 1 + the core on which it last waited long enough to yield
  alignas(kLineBytes) std::atomic<uint32_t> sleepers;  // peers that sleep on `bell`
  alignas(kLineBytes) std::atomic<uint32_t> bell;
  Revocation revocation;
};

// How a rank enters a call. `number` is stored last, with release: it is the signal.
struct alignas(kLineBytes) Entry {
  std::atomic<uint32_t> number;
  uint32_t is_readable;  // 1: peers may read the input in this process, see ArenaView::addresses
  uint64_t signature;
  uint64_t where;      // a Place: where to read this rank's input
  uint64_t where_out;  // a Place: where to write this rank's output, if peers can
  uint64_t longest;    // all_to_all: the largest count in this rank's rows
  static constexpr int kInlineBytes = 208;
  unsigned char data[kInlineBytes];  // a small contribution, or why the rank refused
};
static_assert(sizeof(Entry) == 256, "four lines");

struct alignas(kLineBytes) Step {
  std::atomic<uint64_t> epoch;
};

// A ring of bytes from the arena's owner to one peer. `written` is the owner's, `read` the peer's.
struct alignas(kLineBytes) Mailbox {
  std::atomic<uint64_t> written;
  alignas(kLineBytes) std::atomic<uint64_t> read;
};

// Where a rank's data lies for its peers: in its slots, in its entry, or in symmetric memory.
struct Place {
  // In slots: the offset of its first chunk in each block's ring, or behind the ring.
  static constexpr uint64_t kInline = uint64_t{1} << 47;  // in the entry
  static constexpr int kSegmentShift = 48;  // symmetric: segment number from 1, and an offset
  static constexpr uint64_t kLastSegment = 0xffff;
  static uint64_t symmetric(uint64_t segment, uint64_t offset) {
    return segment << kSegmentShift | offset;
  }
  static uint64_t segment_of(uint64_t place) { return place >> kSegmentShift; }
  static uint64_t offset_of(uint64_t place) { return place & ((uint64_t{1} << kSegmentShift) - 1); }
};

// Offsets within an arena, equal on all ranks of a group.
struct Layout {
  int size = 1;
  int blocks = 1;
  uint64_t slot_bytes = 0;
  uint64_t staging_bytes = 0;  // of a block: the ring of its staging slots
  uint64_t mailbox_bytes = 0;  // of a ring's data
  uint64_t entries = 0, rows = 0, steps = 0, slots = 0, mailboxes = 0, total = 0;

  Layout() = default;
  Layout(int size, int blocks, uint64_t slot_bytes, int slots, uint64_t mailbox_bytes);

  uint64_t row(int parity) const { return rows + parity * row_bytes(); }
  uint64_t row_bytes() const { return round_up(3 * sizeof(int64_t) * size, kLineBytes); }
  // Behind the ring lie two places for small contributions, and the result slot.
  static constexpr uint64_t kHotBytes = 4 << 10;
  uint64_t staging(int block) const { return slots + block * block_bytes(); }
  uint64_t result(int block) const { return staging(block) + staging_bytes + 2 * kHotBytes; }
  uint64_t block_bytes() const { return staging_bytes + 2 * kHotBytes + slot_bytes; }
  uint64_t mailbox(int peer) const { return mailboxes + peer * (sizeof(Mailbox) + mailbox_bytes); }
};

// An arena as it is mapped here.
struct ArenaView {
  unsigned char* base = nullptr;
  const Layout* layout = nullptr;

  Control& control() const { return *reinterpret_cast<Control*>(base); }
  Entry& entry(uint32_t parity) const {
    return reinterpret_cast<Entry*>(base + layout->entries)[parity];
  }
  std::atomic<uint64_t>& step(int block) const {
    return reinterpret_cast<Step*>(base + layout->steps)[block].epoch;
  }
  // In: what the rank sends to each peer; out: what it expects from each.
  int64_t* row_in(uint32_t parity) const {
    return reinterpret_cast<int64_t*>(base + layout->row(static_cast<int>(parity)));
  }
  int64_t* row_out(uint32_t parity) const { return row_in(parity) + layout->size; }
  // Where, in this rank's process, the part of its input for each peer lies.
  uint64_t* addresses(uint32_t parity) const {
    return reinterpret_cast<uint64_t*>(row_in(parity) + 2 * layout->size);
  }
  Mailbox& mailbox(int peer) const {
    return *reinterpret_cast<Mailbox*>(base + layout->mailbox(peer));
  }
};

}  // namespace dda
