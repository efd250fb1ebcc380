#include "engine/watch.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "core/env.h"

namespace dda {
namespace {

// A rank that shares its core with the one that it waits for gets on only when it yields: so it
// polls for some microseconds only. One that has its core alone yields to nobody: so it polls on.
constexpr int kYields = 150;
constexpr int kYieldsOfMany = 40;  // more ranks than cores: to sleep leaves the cores to others
constexpr int64_t kSleepNs = 4'000'000;     // at most; also how long a lost bell costs
constexpr int64_t kShortSleepNs = 100'000;  // where no bell will ring
constexpr int64_t kLifeCheckNs = 10'000'000;
constexpr int64_t kMoveNs = 1'000'000;  // between two moves to another core
constexpr int kReadGraceMs = 200;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

long futex(std::atomic<uint32_t>* word, int op, uint32_t value, const timespec* limit) {
  static_assert(sizeof(*word) == sizeof(uint32_t), "a futex is a plain word");
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), op, value, limit, nullptr, 0);
}

}  // namespace

Watch::Watch(Kind kind, int rank, int size, const ArenaView* arenas,
             std::vector<std::shared_ptr<const Life>> lives)
    : kind_(kind),
      rank_(rank),
      size_(size),
      arenas_(arenas),
      lives_(std::move(lives)),
      segments_(1) {
  cpu_set_t allowed;
  const bool known = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  const int cores = known ? CPU_COUNT(&allowed) : 1;
  const int polls = static_cast<int>(env().spin);
  has_own_core_ = size <= cores;
  // With fewer cores than ranks the peer cannot run while this rank polls.
  spin_ = has_own_core_ ? polls : polls / 8 + 1;
  yields_ = has_own_core_ ? kYields : kYieldsOfMany;
  static const long registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
  (void)registered;  // an old kernel: a lost bell then costs one sleep, no more
}

void Limit::restart(milliseconds timeout) {
  timeout_.store(std::min(timeout, kLongestTimeout), std::memory_order_relaxed);
  deadline_.store(0, std::memory_order_relaxed);
}

bool Limit::is_over() {
  const int64_t now = now_ns();
  int64_t deadline = deadline_.load(std::memory_order_relaxed);
  if (deadline == 0) {
    deadline = now + timeout().count() * 1'000'000;
    deadline_.store(deadline, std::memory_order_relaxed);
  }
  return now >= deadline;
}

bool Watch::must_stop(int p) const {
  return is_revoked() || is_closed() ||
         arenas_[p].control().closed.load(std::memory_order_acquire) != 0;
}

bool Watch::wait_long(int p, Poll poll, const void* ready, Limit& limit) {
  const bool there = wait_rounds(p, poll, ready, limit);
  if (kind_ == Kind::kCalls) own().waits_for.store(0, std::memory_order_relaxed);
  return there;
}

bool Watch::wait_rounds(int p, Poll poll, const void* ready, Limit& limit) {
  for (int round = 0;; ++round) {
    if (poll(ready)) return true;
    if (must_stop(p)) {
      // What the peer published before it left still counts.
      if (poll(ready)) return true;
      if (!is_revoked() && !is_closed()) miss(p);
      return false;
    }
    if (limit.is_over()) {
      give_up(p, limit);
      return false;
    }
    if (round == 0 && has_own_core_) leave_core_of(p);
    if (round < yields_) {
      ::sched_yield();
      continue;
    }
    if (!is_whole()) return false;
    sleep(p, poll, ready);
  }
}

// Two ranks that the scheduler has put on one core take turns there, at some microseconds a turn,
// and as both seem busy it may leave them so for seconds while another core is idle. Where both
// have waited on the same core, the higher rank moves to one where no rank was seen.
void Watch::leave_core_of(int p) {
  const int here = ::sched_getcpu();
  own().core.store(here + 1, std::memory_order_relaxed);
  if (here < 0 || rank_ < p) return;
  if (arenas_[p].control().core.load(std::memory_order_relaxed) != here + 1) return;
  const int64_t now = now_ns();
  if (now < next_move_.load(std::memory_order_relaxed)) return;
  next_move_.store(now + kMoveNs, std::memory_order_relaxed);
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  for (int r = 0; r < size_; ++r) {
    const int core = arenas_[r].control().core.load(std::memory_order_relaxed) - 1;
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(core, &others);
  }
  if (CPU_COUNT(&others) == 0) return;
  if (::sched_setaffinity(0, sizeof(others), &others) != 0) return;
  ::sched_setaffinity(0, sizeof(allowed), &allowed);  // it may go where it likes again
}

bool Watch::is_whole() {
  if (is_revoked() || is_closed()) return false;
  const int64_t now = now_ns();
  if (now < next_life_check_.load(std::memory_order_relaxed)) return true;
  next_life_check_.store(now + kLifeCheckNs, std::memory_order_relaxed);
  for (int p = 0; p < size_; ++p) {
    // In this order: a rank that leaves says so before it ends.
    if (p == rank_ || lives_[p] == nullptr || lives_[p]->is_alive() || has_left(p)) continue;
    lose(p);
    return false;
  }
  return true;
}

void Watch::lose(int p) {
  revoke(Error::Kind::kPeerLost, p, "rank " + std::to_string(p) + " died");
}

bool Watch::is_alive(int p) {
  if (lives_[p] == nullptr || lives_[p]->is_alive()) return true;
  lose(p);
  return false;
}

bool Watch::fail_to_read(int p, int error) {
  // A process that ends loses its memory a moment before its lock, and one that was told of a
  // failure may free what this rank still reads: these are the reasons, not what followed.
  if (error == ESRCH) lose(p);
  for (int i = 0; i < kReadGraceMs && is_alive(p) && !is_revoked() && !is_closed(); ++i) {
    ::usleep(1000);
  }
  revoke(Error::Kind::kSystem, p,
         "rank " + std::to_string(rank_) + " could not read the memory of rank " +
             std::to_string(p) + " (" + std::strerror(error) +
             "); set DDA_SINGLE_COPY_BYTES=0 on all ranks");
  return false;
}

void Watch::miss(int p) {
  revoke(Error::Kind::kPeerLost, p,
         "rank " + std::to_string(p) + " has left the group (destroyed it or exited)");
}

void Watch::give_up(int p, const Limit& limit) noexcept {
  const std::string ms = std::to_string(limit.timeout().count());
  std::string why;
  if (kind_ == Kind::kMessages) {
    why = p == rank_ ? "no rank sent a message that fits"
                     : "rank " + std::to_string(p) + " did not come to send or receive the message";
  } else {
    why = absent_ranks();
    if (why.empty()) {
      p = find_first(p);
      why = "every rank had entered the call; then rank " + std::to_string(p) +
            " stopped or was too slow";
    }
  }
  revoke(Error::Kind::kTimeout, p == rank_ ? -1 : p, "Timed out after " + ms + " ms; " + why);
}

// Follows who waits for whom, from p on, to the rank that waits for nobody. Where they wait in a
// circle, one has stopped in a wait that was over: the one that has come least far.
int Watch::find_first(int p) const {
  const auto lead = [&](int q) {
    int64_t steps = 0;
    for (int block = 0; block < arenas_[q].layout->blocks; ++block) {
      steps += static_cast<int64_t>(arenas_[q].step(block).load(std::memory_order_acquire) -
                                    arenas_[rank_].step(block).load(std::memory_order_relaxed));
    }
    return steps;
  };
  int least = p, at = p;
  for (int hops = 0; hops < size_; ++hops) {
    if (at != rank_ && lead(at) < lead(least)) least = at;
    const int next = arenas_[at].control().waits_for.load(std::memory_order_relaxed) - 1;
    if (at != rank_ && (next < 0 || next >= size_)) return at;
    at = at == rank_ ? p : next;
  }
  return least;
}

void Watch::sleep(int p, Poll poll, const void* ready) {
  // Again and again, since other threads of this rank, which wait for others, end their waits.
  if (kind_ == Kind::kCalls) own().waits_for.store(p + 1, std::memory_order_relaxed);
  Control& theirs = arenas_[p].control();
  const uint32_t heard = theirs.bell.load(std::memory_order_acquire);
  theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
  membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  if (!poll(ready)) {
    const timespec limit = {0, p == rank_ ? kShortSleepNs : kSleepNs};
    futex(&theirs.bell, FUTEX_WAIT, heard, &limit);
  }
  theirs.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Watch::ring_bell() {
  own().bell.fetch_add(1, std::memory_order_release);
  futex(&own().bell, FUTEX_WAKE, INT_MAX, nullptr);
}

std::string Watch::absent_ranks() const {
  std::string absent;
  for (int p = 0; p < size_; ++p) {
    const uint32_t theirs = arenas_[p].entry(number_ & 1).number.load(std::memory_order_acquire);
    if (p != rank_ && theirs != number_) absent += (absent.empty() ? "" : ", ") + std::to_string(p);
  }
  if (absent.empty()) return absent;
  return "not arrived: rank " + absent + "; look there, or raise the timeout";
}

void Watch::revoke(Error::Kind kind, int culprit, const std::string& why) noexcept {
  for (int i = 0; i < size_; ++i) {
    Control& theirs = arenas_[(rank_ + i) % size_].control();
    Revocation& r = theirs.revocation;
    uint32_t none = 0;
    if (r.state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) {
      r.kind = static_cast<int32_t>(kind);
      r.by = rank_;
      r.culprit = culprit;
      std::strncpy(r.why, why.c_str(), sizeof(r.why) - 1);
      r.state.store(2, std::memory_order_release);
    }
    theirs.bell.fetch_add(1, std::memory_order_release);
    futex(&theirs.bell, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

Failure Watch::failure() const {
  const Revocation& r = own().revocation;
  // The writer is between two stores; if it died there, the reason is lost, not the fact.
  for (int i = 0; i < 1000 && r.state.load(std::memory_order_acquire) != 2; ++i) ::sched_yield();
  if (r.state.load(std::memory_order_acquire) != 2) {
    return {Error::Kind::kAborted, -1, -1, "the group was revoked"};
  }
  return {static_cast<Error::Kind>(r.kind), r.by, r.culprit,
          std::string(r.why, ::strnlen(r.why, sizeof(r.why)))};
}

void Watch::close() noexcept {
  own().closed.store(1, std::memory_order_release);
  ring_bell();
}

bool Watch::is_within(uint64_t place, uint64_t bytes) const {
  const uint64_t number = Place::segment_of(place);
  if (number == 0) return true;  // in the arena
  if (number >= segments_.size() || segments_[number].bases.empty()) return false;
  const uint64_t size = segments_[number].bytes;
  return bytes <= size && Place::offset_of(place) <= size - bytes;
}

uint64_t Watch::add_segment(std::vector<unsigned char*> bases, uint64_t bytes) {
  if (segments_.size() > Place::kLastSegment) {
    throw Error(Error::Kind::kMemory, "a group has room for " +
                                          std::to_string(Place::kLastSegment) +
                                          " symmetric allocations; make a new group");
  }
  segments_.push_back({std::move(bases), bytes});
  return segments_.size() - 1;
}

}  // namespace dda
