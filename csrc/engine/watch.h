// Waiting for peers: how every wait of the engine polls, yields, sleeps, and ends.
//
// A wait polls for a few microseconds, then yields the core, then sleeps on the peer's bell (a
// futex), so that more ranks than cores make progress and idle ranks cost nothing. It ends when its
// condition holds, when the group is revoked, when a peer has died or left, or when the call's time
// is up; whoever finds the last three revokes the group: the reason is written into every arena,
// and all waits of all ranks end.
//
// The bell costs the ringer one load: the sleeper says that it sleeps, then forces a memory barrier
// on every running thread of the peers (membarrier), then looks once more. So either the sleeper
// sees the signal or the ringer sees the sleeper.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dda/group.h"
#include "memory/layout.h"
#include "memory/life.h"

namespace dda {

// One pause between polls.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// What the group was revoked for, as told to this rank.
struct Failure {
  Error::Kind kind;
  int by;       // the rank that found it
  int culprit;  // the rank to blame, or -1
  std::string why;
};

// How long the waits of one call, or the wait for one message, may last together. The clock starts
// with the first wait that is not over at once.
class Limit {
 public:
  explicit Limit(milliseconds timeout = milliseconds{0}) { restart(timeout); }
  void restart(milliseconds timeout);
  bool is_over();
  milliseconds timeout() const { return timeout_.load(std::memory_order_relaxed); }

 private:
  std::atomic<milliseconds> timeout_;
  std::atomic<int64_t> deadline_;  // steady clock, ns; 0: no wait was long so far
};

class Watch {
 public:
  // Of collective calls, or of messages.
  enum class Kind { kCalls, kMessages };
  Watch(Kind kind, int rank, int size, const ArenaView* arenas,
        std::vector<std::shared_ptr<const Life>> lives);

  // A new call begins: its waits may last `timeout` together.
  void begin(uint32_t number, milliseconds timeout) {
    number_ = number;
    of_call_.restart(timeout);
  }

  // For who does not wait but comes by: whether the group is whole. Looks at the peers' processes
  // now and then, and revokes the group if one has died.
  bool is_whole();
  // Whether p's process is alive; revokes the group if not.
  bool is_alive(int p);
  // Revokes the group because p's memory cannot be read, for what errno `error` says. False.
  bool fail_to_read(int p, int error);
  // Revokes the group because `p` has left it.
  void miss(int p);
  bool has_left(int p) const {
    return arenas_[p].control().closed.load(std::memory_order_acquire) != 0;
  }

  // Waits for peer `p` until `ready()`; false if the wait ended without it. `p` may be this rank:
  // then any peer may bring about what it waits for.
  template <class Ready>
  bool wait(int p, Ready ready) {
    return wait(p, ready, of_call_);
  }
  template <class Ready>
  bool wait(int p, Ready ready, Limit& limit) {
    for (int i = 0; i < spin_; ++i) {
      if (ready()) return true;
      relax();
    }
    const Poll poll = [](const void* r) { return (*static_cast<const Ready*>(r))(); };
    return wait_long(p, poll, &ready, limit);
  }

  // Wakes whoever sleeps for this rank's signals. Called after each.
  void ring() {
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the barrier is the sleeper's
    if (own().sleepers.load(std::memory_order_relaxed) != 0) ring_bell();
  }

  void note_mismatch() { mismatch_.store(true, std::memory_order_relaxed); }
  bool take_mismatch() { return mismatch_.exchange(false, std::memory_order_relaxed); }

  // Ends all waits of all ranks. The first reason stays.
  void revoke(Error::Kind kind, int culprit, const std::string& why) noexcept;
  bool is_revoked() const { return own().revocation.state.load(std::memory_order_relaxed) != 0; }
  Failure failure() const;

  // Ends this rank's waits: it leaves the group.
  void close() noexcept;
  bool is_closed() const { return own().closed.load(std::memory_order_relaxed) != 0; }

  // Where a symmetric place of peer p lies in this process.
  unsigned char* resolve(int p, uint64_t place) const {
    return segments_[Place::segment_of(place)].bases[p] + Place::offset_of(place);
  }
  // Whether `bytes` bytes at a place that a peer has sent lie in memory that is mapped here.
  bool is_within(uint64_t place, uint64_t bytes) const;
  // Registers symmetric memory: one mapping of `bytes` a rank. Returns its segment number, which is
  // the same on all ranks.
  uint64_t add_segment(std::vector<unsigned char*> bases, uint64_t bytes);
  void drop_segment(uint64_t segment) { segments_[segment].bases.clear(); }
  uint64_t next_segment() const { return segments_.size(); }

 private:
  struct Symmetric {
    std::vector<unsigned char*> bases;  // by rank; empty once it was freed
    uint64_t bytes = 0;
  };
  using Poll = bool (*)(const void*);
  bool wait_long(int p, Poll poll, const void* ready, Limit& limit);
  bool wait_rounds(int p, Poll poll, const void* ready, Limit& limit);
  void leave_core_of(int p);
  void sleep(int p, Poll poll, const void* ready);
  bool must_stop(int p) const;
  void lose(int p);
  void give_up(int p, const Limit& limit) noexcept;
  void ring_bell();
  int find_first(int p) const;
  std::string absent_ranks() const;
  Control& own() const { return arenas_[rank_].control(); }

  const Kind kind_;
  const int rank_, size_;
  const ArenaView* const arenas_;
  std::vector<std::shared_ptr<const Life>> lives_;
  std::vector<Symmetric> segments_;  // by number; the first is none
  bool has_own_core_;                // there are as many cores as ranks
  std::atomic<int64_t> next_move_{0};
  int spin_, yields_;  // how often a wait polls, and then yields, before it sleeps
  uint32_t number_ = 0;
  Limit of_call_;
  std::atomic<int64_t> next_life_check_{0};
  std::atomic<bool> mismatch_{false};
};

}  // namespace dda
