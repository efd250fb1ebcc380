// A group on CPUs: the arenas of all ranks, mapped here, and the calls that run over them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/task.h"
#include "dda/group.h"
#include "device/cpu.h"
#include "engine/choose.h"
#include "engine/messages.h"
#include "engine/symmetric.h"
#include "engine/watch.h"
#include "memory/exchange.h"

namespace dda {

class CpuGroup final : public Group {
 public:
  CpuGroup(std::shared_ptr<Bootstrap> store, const GroupOptions& options, const Layout& layout,
           std::vector<Neighbour> neighbours, bool can_read);
  ~CpuGroup() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void run(const Call& call) override;
  void refuse(const std::string& why) noexcept override;
  std::shared_ptr<Message> send(int peer, uint32_t tag, DType dtype, uint64_t count,
                                const void* data) override;
  std::shared_ptr<Message> receive(int peer, uint32_t tag, DType dtype, uint64_t count,
                                   void* data) override;
  int progress() override;
  int wait(const std::shared_ptr<Message>& message, milliseconds timeout) override;
  bool is_done(const std::shared_ptr<Message>& message) override;
  std::shared_ptr<SymmetricMemory> allocate(size_t bytes) override;
  void abort(const std::string& why) noexcept override;
  void close() noexcept override;
  std::string error() const override;
  milliseconds timeout() const override { return timeout_; }
  void set_timeout(milliseconds timeout) override { timeout_ = timeout; }
  uint64_t sequence() const override { return sequence_; }
  Explanation explain(Collective collective, uint64_t bytes, bool symmetric) const override;
  void time(const Call& call, int iterations, double* out) override;

 private:
  struct Running;

  // Where the next contribution is staged: never where the one before lies, which peers may still
  // be reading. Large ones run through the ring, so that a line comes back only when it has left
  // the caches of both cores: to store to a line that a peer's cache still holds takes longer than
  // the copy itself (measured: 64 KiB in 7.4 us over two slots, 1.6 us over a ring of 2 MiB). Small
  // ones take turns in two places, which the caches keep.
  struct Cursor {
    uint64_t next = 0;
    bool hot = false;

    // `bytes`: a slot at most, of which the ring has four and more.
    uint64_t take(uint64_t bytes, uint64_t ring) {
      if (bytes <= Layout::kHotBytes) {
        hot = !hot;
        return ring + (hot ? Layout::kHotBytes : 0);
      }
      const uint64_t at = next + bytes > ring ? 0 : next;
      next = at + bytes;
      return at;
    }
  };

  void check_not_forked(const char* what) const;
  void check_usable(const char* what, uint32_t number = 0) const;
  std::string find_problem(const Call& call) const;
  bool is_streamed(const Call& call) const;
  Task cut(const Call& call, const Plan& plan);
  Plan plan_for(const Call& call, uint64_t longest, bool may_read = true) const;
  void offer_symmetric(const Call& call, EntryRecord& entry) const;
  void offer_addresses(const Task& task, EntryRecord& entry) const;
  bool are_all_readable() const;
  bool is_any_symmetric(uint32_t number) const;
  bool exchange_entries(const EntryRecord& entry);
  void publish_rows(const Call& call, EntryRecord& entry);
  void check_rows(const Call& call, uint64_t* longest);
  bool run_blocks(const Running& running);
  bool run_block(const Running& running, int index, bool entered);
  bool leave_together();
  void run_alone(const Call& call);
  bool await_last_call();
  void refuse_locked(const std::string& why) noexcept;
  [[noreturn]] void throw_mismatch(const Call& call) const;
  [[noreturn]] void throw_failure(const char* what, uint32_t number) const;

  const int rank_, size_;
  std::atomic<milliseconds> timeout_;
  const std::shared_ptr<Bootstrap> store_;
  const uint32_t made_in_;  // fork_generation() of the process that made it
  void (*const parallel_)(int, void (*)(int, void*), void*);
  const CpuOps& ops_;
  const Layout layout_;
  const Tuning tuning_;
  std::vector<Neighbour> neighbours_;
  const std::vector<pid_t> processes_;
  std::vector<ArenaView> arenas_;
  Watch watch_;
  Messages messages_;
  SymmetricHeap heap_;

  std::mutex mutex_;          // one call at a time
  uint32_t number_;           // of the last call, as peers see it: it wraps
  bool has_refused_ = false;  // the last call
  Cursor cursor_;
  std::vector<StoreChoice> stores_;  // by block
  std::atomic<uint64_t> sequence_{0};
  std::vector<uint64_t> in_offsets_, out_offsets_;
};

// Ranks that are threads of this process, over memory of the process: for tests under tools that
// cannot see through shared mappings.
std::vector<std::shared_ptr<Group>> make_thread_groups(int size, const GroupOptions& options);

}  // namespace dda
