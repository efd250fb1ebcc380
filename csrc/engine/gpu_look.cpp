#include <algorithm>
#include <cstring>

#include "core/signature.h"
#include "engine/gpu_group.h"

// The part of GpuGroup that looks after it while kernels run: what each rank has called, what
// kernels have reported, who has left.

namespace dda {

// Tells the peers what this rank has called, so that they can compare.
void GpuGroup::log(uint64_t number, uint64_t signature) {
  GpuRecord& mine = arenas_->record(rank_);
  GpuRecord::Call& entry = mine.log[number % GpuRecord::kLogged];
  entry.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.signature.store(signature, std::memory_order_relaxed);
  entry.number.store(number, std::memory_order_release);
  mine.calls.store(number, std::memory_order_release);
}

void GpuGroup::refuse(const std::string& why) noexcept {
  if (fork_generation() != made_in_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (watch_.is_closed() || watch_.is_revoked()) return;
  GpuRecord& mine = arenas_->record(rank_);
  std::strncpy(mine.why, why.c_str(), sizeof(mine.why) - 1);
  mine.refused.store(number_ + 1, std::memory_order_release);
  log(++number_, Signature::refused().word);
}

void GpuGroup::look() noexcept {
  report_failure();
  if (!watch_.is_revoked()) compare_logs();
  if (!watch_.is_revoked()) look_for_leavers();
  if (!watch_.is_whole() && watch_.is_revoked()) arenas_->words()->abort = 1;
}

void GpuGroup::report_failure() {
  const volatile GpuFailure& f = arenas_->words()->failure;
  if (has_reported_ || f.kind == GpuFailure::kNone) return;
  has_reported_ = true;
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::string peer = "rank " + std::to_string(f.peer);
  const std::string me = "rank " + std::to_string(rank_);
  switch (f.kind) {
    case GpuFailure::kMismatch:
      return watch_.revoke(Error::Kind::kMismatch, f.peer,
                           peer + " called " + Signature{f.theirs}.describe() + "; " + me +
                               " called " + Signature{f.mine}.describe() +
                               ". All ranks must make the same calls in the same order");
    case GpuFailure::kRows:
      return watch_.revoke(Error::Kind::kMismatch, f.peer,
                           peer + " sends " + std::to_string(f.theirs) + " elements to " + me +
                               ", which expects " + std::to_string(f.mine) +
                               ". Input and output splits must agree");
    case GpuFailure::kLength:
      return watch_.revoke(Error::Kind::kMismatch, f.peer,
                           peer + " sent " + std::to_string(f.theirs) + " bytes to " + me +
                               ", which expects " + std::to_string(f.mine) +
                               ". Messages between two ranks are received in the order in which "
                               "they are sent");
    case GpuFailure::kBusy:
      return watch_.revoke(Error::Kind::kInvalid, rank_,
                           "two calls of the group ran at once on " + me +
                               "; order the streams on which its graphs are replayed");
    default: {
      // The rank that has called least is the one that all wait for.
      int first = f.peer;
      for (int p = 0; p < size_; ++p) {
        const auto calls = [&](int r) { return arenas_->record(r).calls.load(); };
        if (p != rank_ && calls(p) < calls(first)) first = p;
      }
      watch_.revoke(Error::Kind::kTimeout, first,
                    "Timed out; rank " + std::to_string(first) + " did not come (" + me +
                        " waited in block " + std::to_string(f.block) + " for step " +
                        std::to_string(f.step) + ")");
    }
  }
}

void GpuGroup::compare_logs() {
  const auto logged = [&](int p, uint64_t n, uint64_t* signature) {
    const GpuRecord::Call& entry = arenas_->record(p).log[n % GpuRecord::kLogged];
    if (entry.number.load(std::memory_order_acquire) != n) return false;
    *signature = entry.signature.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    return entry.number.load(std::memory_order_relaxed) == n;
  };
  const uint64_t last = number_;
  if (last - compared_ > GpuRecord::kLogged) compared_ = last - GpuRecord::kLogged;
  for (; compared_ < last; ++compared_) {
    const uint64_t n = compared_ + 1;
    uint64_t mine = 0;
    if (!logged(rank_, n, &mine)) continue;
    for (int p = 0; p < size_; ++p) {
      if (arenas_->record(p).calls.load(std::memory_order_acquire) < n) return;  // later
      uint64_t theirs = 0;
      if (!logged(p, n, &theirs) || Signature{mine}.agrees_with({theirs})) continue;
      const GpuRecord& record = arenas_->record(p);
      const bool refused = Signature{theirs} == Signature::refused();
      const bool has_words = record.refused.load(std::memory_order_acquire) == n;
      const std::string what =
          refused ? " refused it" + (has_words ? " (" + std::string(record.why) + ")" : "")
                  : " called " + Signature{theirs}.describe();
      watch_.revoke(Error::Kind::kMismatch, p,
                    "in call " + std::to_string(n) + " rank " + std::to_string(p) + what +
                        "; rank " + std::to_string(rank_) + " called " +
                        Signature{mine}.describe() +
                        ". All ranks must make the same calls in the same order");
      return;
    }
  }
}

void GpuGroup::look_for_leavers() {
  for (int p = 0; p < size_; ++p) {
    if (p == rank_ || !watch_.has_left(p)) continue;
    if (arenas_->record(p).calls.load(std::memory_order_acquire) < number_) watch_.miss(p);
  }
}

}  // namespace dda
