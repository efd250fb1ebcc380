// The device interface on a CPU: what an algorithm may do, for one block of one rank.
//
//   stage(c, …)     copies into this rank's staging slot for chunk c
//   staged(p, c, …) where peer p's chunk c lies, once p has published it
//   fetch(to, p, …) copies that to a place in the output; false: stop, the call failed
//   publish()       one release: all that this block has written is visible to whoever sees it
//   wait(p, s)      acquires peer p's s-th publication of this call; false: stop, the call failed
//   wait_all()      acquires everybody's publication of the number that this block has reached
//   copy, deliver   move bytes, the latter to a place in the output
//
// The first publication of a call is its entry: it carries the call's signature, and wait_all()
// compares it with every peer's before anything is read or written. A call of one chunk stages
// before it enters, so that the entry is also the signal that the data is there; `first()` is the
// number of the publication that announces chunk 0.
//
// Why no barrier is needed at the end, although peers may still read: every call begins with a full
// exchange of entries, so a rank is at most one call ahead of any other. What it stages then does
// not overlap its last chunk (the cursor has moved on), and every earlier chunk has been read by
// those who published a later step, for which the algorithms wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/epoch.h"
#include "core/signature.h"
#include "device/cpu_ops.h"
#include "device/cpu_store.h"
#include "engine/failpoint.h"
#include "engine/watch.h"
#include "memory/layout.h"
#include "memory/process.h"

namespace dda {

// How a signal is stored. A test build demotes it, to see ThreadSanitizer find that.
#if defined(DDA_RELAXED_SIGNALS)
inline constexpr std::memory_order kSignal = std::memory_order_relaxed;
#else
inline constexpr std::memory_order kSignal = std::memory_order_release;
#endif

// What a rank says when it enters.
struct EntryRecord {
  uint32_t number = 0;  // of the call
  bool is_readable = false;
  Signature signature;
  uint64_t where = 0;
  uint64_t where_out = 0;
  uint64_t longest = 0;
  // Of this rank's input: a peer's symmetric one is as long. Where data enters with the call, no
  // place in symmetric memory is long enough.
  uint64_t bytes = UINT64_MAX;
};

class CpuBlock {
 public:
  using Sources = const void* [kMaxRanks];

  CpuBlock(const ArenaView* arenas, const Layout& layout, Watch& watch, const CpuOps& ops, int rank,
           int index, const EntryRecord& entry, bool entered, uint64_t slot_bytes, bool streams,
           StoreChoice& store, const pid_t* processes)
      : arenas_(arenas),
        layout_(layout),
        watch_(watch),
        ops_(ops),
        rank_(rank),
        index_(index),
        entry_(entry),
        base_(arenas[rank].step(index).load(std::memory_order_relaxed)),
        slot_bytes_(slot_bytes),
        streams_(streams),
        store_(store),
        processes_(processes),
        step_(entered ? 1 : 0),
        first_(entered ? 2 : 1) {}

  int rank() const { return rank_; }
  int size() const { return layout_.size; }
  int index() const { return index_; }
  uint32_t first() const { return first_; }
  // The peer that is `i` places behind this rank, so that ranks do not all turn to rank 0 at once.
  int neighbour(int i) const { return (rank_ + i) % size(); }

  // How many slots of this call's chunks the ring has: the chunks lie in them in turn.
  uint32_t slots() const { return static_cast<uint32_t>(layout_.staging_bytes / slot_bytes_); }

  // This rank's staging slot for chunk `c`, at byte `at`.
  unsigned char* slot(uint64_t c, uint64_t at) const {
    if (entry_.where == Place::kInline) return own_entry().data + at;
    return in_ring(rank_, entry_.where, c) + at;
  }
  void stage(uint64_t c, uint64_t at, const void* from, uint64_t bytes) const {
    // Peers read it where it is.
    if (is_symmetric(entry_.where) || processes_ != nullptr) return;
    store_.copy(ops_, slot(c, at), from, bytes);
  }
  // Peer p's chunk `c`: at byte `at` of its slot, or at byte `offset` of its symmetric tensor.
  const unsigned char* staged(int p, uint64_t c, uint64_t at, uint64_t offset) const {
    const Entry& theirs = entry_of(p);
    if (theirs.where == Place::kInline) return theirs.data + at;
    if (is_symmetric(theirs.where)) return watch_.resolve(p, theirs.where) + offset;
    return in_ring(p, theirs.where, c) + at;
  }
  unsigned char* result(int p) const { return arenas_[p].base + layout_.result(index_); }
  // Whether every rank's output can be written by its peers, and where rank p's is.
  bool all_outputs_shared() const {
    for (int p = 0; p < size(); ++p) {
      if (!is_symmetric(entry_of(p).where_out)) return false;
    }
    return true;
  }
  unsigned char* output(int p, uint64_t offset) const {
    return watch_.resolve(p, entry_of(p).where_out) + offset;
  }

  void publish() {
    DDA_FAILPOINT_AT("publish");
    if (step_++ == 0) {
      Entry& mine = own_entry();
      mine.is_readable = entry_.is_readable;
      mine.signature = entry_.signature.word;
      mine.where = entry_.where;
      mine.where_out = entry_.where_out;
      mine.longest = entry_.longest;
      mine.number.store(entry_.number, kSignal);
    } else {
      arenas_[rank_].step(index_).store(base_ + step_ - 1, kSignal);
    }
    watch_.ring();
    DDA_FAILPOINT_AT("published");
  }

  bool wait(int p, uint32_t step) {
    if (step <= 1) return true;  // the entries have been exchanged
    const std::atomic<uint64_t>& theirs = arenas_[p].step(index_);
    const uint64_t target = base_ + step - 1;
    return watch_.wait(p,
                       [&] { return has_reached(theirs.load(std::memory_order_acquire), target); });
  }

  bool wait_all() { return step_ == 1 ? enter() : wait_all(step_); }
  // As wait_all, for an earlier publication.
  bool wait_all(uint32_t step) {
    for (int i = 1; i < size(); ++i) {
      if (!wait(neighbour(i), step)) return false;
    }
    return true;
  }

  void copy(void* dst, const void* src, uint64_t bytes) const {
    if (dst != src && bytes != 0) ops_.copy(dst, src, bytes);
  }
  void deliver(void* dst, const void* src, uint64_t bytes) const {
    if (streams_ && dst != src) {
      ops_.copy_stream(dst, src, bytes);
    } else {
      copy(dst, src, bytes);
    }
  }
  // Copies peer p's chunk `c` to the output, from where `staged` says; or, in a call of one copy,
  // from the peer's process, at byte `offset` of the part that is for this rank.
  bool fetch(void* to, int p, uint64_t c, uint64_t at, uint64_t offset, uint64_t bytes) const {
    if (processes_ == nullptr || is_symmetric(entry_of(p).where)) {
      deliver(to, staged(p, c, at, offset), bytes);
      return true;
    }
    return bytes == 0 || read(to, p, offset, bytes);
  }

 private:
  // In pieces, so that it ends soon after the group is revoked.
  bool read(void* to, int p, uint64_t offset, uint64_t bytes) const {
    constexpr uint64_t kPiece = 4 << 20;
    const uint64_t from = arenas_[p].addresses(entry_.number & 1)[rank_] + offset;
    for (uint64_t done = 0; done < bytes; done += kPiece) {
      DDA_FAILPOINT_AT("read");
      if (watch_.is_revoked() || watch_.is_closed()) return false;
      const int error = read_process(processes_[p], from + done, static_cast<char*>(to) + done,
                                     std::min(kPiece, bytes - done));
      if (error != 0) return watch_.fail_to_read(p, error);
    }
    return watch_.is_alive(p);  // so the pid was the peer's all the time
  }
  // Chunk `c` of a call that began at offset `where`: each chunk in the next slot of the ring, or
  // the one chunk behind the ring. Whatever a peer says, it is kept within its arena.
  unsigned char* in_ring(int p, uint64_t where, uint64_t c) const {
    const uint64_t ring = layout_.staging_bytes;
    const uint64_t offset = where >= ring ? ring + (where - ring) % (2 * Layout::kHotBytes)
                            : c == 0      ? where
                                          : (where / slot_bytes_ + c) % slots() * slot_bytes_;
    return arenas_[p].base + layout_.staging(index_) + offset;
  }
  static bool is_symmetric(uint64_t where) { return Place::segment_of(where) != 0; }
  Entry& own_entry() const { return arenas_[rank_].entry(entry_.number & 1); }
  const Entry& entry_of(int p) const { return arenas_[p].entry(entry_.number & 1); }

  // Waits for every peer's entry, also after a difference was found: everyone has then come to this
  // call, and the group can go on with the next one.
  bool enter() {
    bool equal = true;
    for (int i = 1; i < size(); ++i) {
      const int p = neighbour(i);
      const Entry& theirs = entry_of(p);
      const bool there = watch_.wait(
          p, [&] { return theirs.number.load(std::memory_order_acquire) == entry_.number; });
      if (!there) return false;
      equal &= entry_.signature.agrees_with({theirs.signature});
    }
    if (!equal) watch_.note_mismatch();
    return equal && are_places_sound();
  }

  // What a peer says is not trusted to lie in its memory.
  bool are_places_sound() {
    for (int p = 0; p < size(); ++p) {
      const Entry& theirs = entry_of(p);
      if (watch_.is_within(theirs.where, entry_.bytes) &&
          watch_.is_within(theirs.where_out, entry_.bytes)) {
        continue;
      }
      watch_.revoke(Error::Kind::kSystem, p,
                    "rank " + std::to_string(p) + " sent a place outside its memory");
      return false;
    }
    return true;
  }

  const ArenaView* arenas_;
  const Layout& layout_;
  Watch& watch_;
  const CpuOps& ops_;
  const int rank_;
  const int index_;
  const EntryRecord& entry_;
  // Steps are counted on through all calls: every rank publishes equally often in every call, so
  // its own count at the start of a call is everybody's. (A word made of the call's number and the
  // step would look as if it were ahead once the number has gone half round since the last large
  // call.)
  const uint64_t base_;
  const uint64_t slot_bytes_;
  const bool streams_;
  StoreChoice& store_;
  const pid_t* const processes_;  // by rank: whose memory this call reads; nullptr: nobody's
  uint32_t step_;
  const uint32_t first_;
};

}  // namespace dda
