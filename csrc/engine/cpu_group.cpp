#include "engine/cpu_group.h"

#include <algorithm>
#include <cstring>

#include "collectives/all_gather.h"
#include "collectives/all_reduce/flat.h"
#include "collectives/all_reduce/tree.h"
#include "collectives/all_to_all.h"
#include "collectives/reduce.h"
#include "collectives/reduce_scatter.h"
#include "collectives/rooted.h"
#include "core/env.h"
#include "device/cpu_reducer.h"
#include "engine/describe.h"
#include "engine/validate.h"

namespace dda {
namespace {

// Every so many calls, symmetric memory that all ranks have freed goes.
constexpr uint32_t kCallsPerCollection = 256;

// `number` 0: not a collective call.
std::string call_name(const char* what, uint32_t number) {
  return number == 0 ? what : std::string(what) + " (call " + std::to_string(number) + ")";
}

std::vector<ArenaView> views_of(const std::vector<Neighbour>& neighbours, const Layout& layout) {
  std::vector<ArenaView> views;
  for (const Neighbour& n : neighbours) views.push_back({n.segment.data(), &layout});
  return views;
}

std::vector<std::shared_ptr<const Life>> lives_of(const std::vector<Neighbour>& neighbours) {
  std::vector<std::shared_ptr<const Life>> lives;
  for (const Neighbour& n : neighbours) lives.push_back(n.life);
  return lives;
}

std::vector<pid_t> processes_of(const std::vector<Neighbour>& neighbours) {
  std::vector<pid_t> processes;
  for (const Neighbour& n : neighbours) processes.push_back(n.pid);
  return processes;
}

void one_after_another(int n, void (*body)(int, void*), void* arg) {
  for (int i = 0; i < n; ++i) body(i, arg);
}

}  // namespace

// What the blocks of one call share.
struct CpuGroup::Running {
  const Call& call;
  const Plan& plan;
  const Task& task;
  const CpuReducer& reducer;
  const EntryRecord& entry;
};

CpuGroup::CpuGroup(std::shared_ptr<Bootstrap> store, const GroupOptions& options,
                   const Layout& layout, std::vector<Neighbour> neighbours, bool can_read)
    : rank_(options.rank),
      size_(options.size),
      timeout_(options.timeout),
      store_(std::move(store)),
      made_in_(fork_generation()),
      parallel_(options.parallel != nullptr ? options.parallel : one_after_another),
      ops_(*find_cpu_ops(env().isa.c_str())),
      layout_(layout),
      tuning_(default_tuning(layout, can_read)),
      neighbours_(std::move(neighbours)),
      processes_(processes_of(neighbours_)),
      arenas_(views_of(neighbours_, layout_)),
      watch_(Watch::Kind::kCalls, rank_, size_, arenas_.data(), lives_of(neighbours_)),
      messages_(rank_, size_, arenas_.data(), layout_, lives_of(neighbours_)),
      number_(options.calls_before),
      stores_(layout.blocks),
      in_offsets_(size_),
      out_offsets_(size_) {}

CpuGroup::~CpuGroup() { close(); }

// Before any lock: another thread may have held it when this child was forked.
void CpuGroup::check_not_forked(const char* what) const {
  if (fork_generation() == made_in_) return;
  throw Error(Error::Kind::kInvalid, std::string(what) +
                                         ": this process was forked after the group was made; a "
                                         "child must make a group of its own");
}

void CpuGroup::check_usable(const char* what, uint32_t number) const {
  if (watch_.is_closed()) {
    throw Error(Error::Kind::kAborted, std::string(what) + " on rank " + std::to_string(rank_) +
                                           ": the group was destroyed; make a new one");
  }
  if (watch_.is_revoked()) throw_failure(what, number);
}

void CpuGroup::run(const Call& call) {
  check_not_forked(name_of(call.collective));
  const std::lock_guard<std::mutex> lock(mutex_);
  check_usable(name_of(call.collective), number_);
  if (number_ % kCallsPerCollection == 0) heap_.collect(watch_);
  const std::string problem = find_problem_in(call, size_);
  if (!problem.empty()) {
    refuse_locked(problem);
    throw Error(Error::Kind::kInvalid, std::string(name_of(call.collective)) + " on rank " +
                                           std::to_string(rank_) + ": " + problem);
  }
  ++sequence_;
  if (size_ == 1) return run_alone(call);
  watch_.begin(number_, call.timeout.count() > 0 ? call.timeout : timeout());
  if (!await_last_call()) throw_failure(name_of(call.collective), number_);
  watch_.begin(++number_, call.timeout.count() > 0 ? call.timeout : timeout());

  uint64_t longest = longest_part(call, size_);
  Plan plan = plan_for(call, longest);
  const CpuReducer reducer =
      reducer_of(ops_, call.dtype, call.reduce, call.factor, is_streamed(call));
  EntryRecord entry;
  entry.number = number_;
  entry.signature = sign(call, size_);
  bool ok = true;
  if (plan.enters_with_data) {
    const Task task = cut(call, plan);
    const uint64_t staged = task.stride() * (task.in.whole ? 1 : size_);
    entry.where = staged <= Entry::kInlineBytes ? Place::kInline
                                                : cursor_.take(staged, layout_.staging_bytes);
    ok = run_block({call, plan, task, reducer, entry}, 0, false);
  } else {
    if (call.collective == Collective::kAllToAll) publish_rows(call, entry);
    entry.bytes = call.count * size_of(call.dtype) *
                  (call.collective == Collective::kReduceScatter ? size_ : 1);
    if (!reducer.scales()) offer_symmetric(call, entry);
    // The longest part of an uneven all_to_all may be another rank's.
    if (plan.single_copy || call.in_counts != nullptr) offer_addresses(cut(call, plan), entry);
    // Whatever was staged before has been read once the entries are exchanged.
    const uint64_t slots = layout_.staging_bytes / plan.slot;
    const uint64_t first = (cursor_.next + plan.slot - 1) / plan.slot % slots;
    if (Place::segment_of(entry.where) == 0) entry.where = first * plan.slot;
    ok = exchange_entries(entry);
    if (ok && call.collective == Collective::kAllToAll) check_rows(call, &longest);
    plan = plan_for(call, longest, are_all_readable());
    cursor_.next = (first + plan.chunks) % slots * plan.slot;
    const Task task = cut(call, plan);
    ok = ok && run_blocks({call, plan, task, reducer, entry}) &&
         (!(plan.single_copy || is_any_symmetric(number_)) || leave_together());
  }
  if (ok) return;
  if (watch_.take_mismatch()) throw_mismatch(call);
  throw_failure(name_of(call.collective), number_);
}

bool CpuGroup::run_blocks(const Running& running) {
  if (running.plan.blocks == 1) return run_block(running, 0, true);
  struct Shared {
    CpuGroup* group;
    const Running* running;
    std::atomic<bool> ok;
  } shared = {this, &running, {true}};
  const auto body = [](int index, void* arg) {
    auto* const s = static_cast<Shared*>(arg);
    if (!s->group->run_block(*s->running, index, true)) s->ok.store(false);
  };
  parallel_(running.plan.blocks, body, &shared);
  return shared.ok.load();
}

bool CpuGroup::run_block(const Running& running, int index, bool entered) {
  CpuBlock b(arenas_.data(), layout_, watch_, ops_, rank_, index, running.entry, entered,
             running.task.slot, running.task.streams, stores_[index],
             running.plan.single_copy ? processes_.data() : nullptr);
  const Task& t = running.task;
  const bool is_tree = running.plan.algorithm == Algorithm::kTree;
  switch (running.call.collective) {
    case Collective::kBarrier:
      b.publish();
      return b.wait_all();
    case Collective::kAllReduce:
      return is_tree ? all_reduce_tree(b, t, running.reducer)
                     : all_reduce_flat(b, t, running.reducer);
    case Collective::kReduce:
      return is_tree ? all_reduce_tree(b, t, running.reducer, t.root)
                     : reduce_flat(b, t, running.reducer);
    case Collective::kBroadcast:
    case Collective::kScatter:
      return from_root(b, t, running.call.collective == Collective::kScatter);
    case Collective::kGather:
      return to_root(b, t);
    case Collective::kAllGather:
      return all_gather(b, t);
    case Collective::kReduceScatter:
      return reduce_scatter(b, t, running.reducer);
    case Collective::kAllToAll:
      return all_to_all(b, t);
    default:
      return false;
  }
}

bool CpuGroup::exchange_entries(const EntryRecord& entry) {
  CpuBlock b(arenas_.data(), layout_, watch_, ops_, rank_, 0, entry, false, layout_.slot_bytes,
             false, stores_[0], nullptr);
  b.publish();
  return b.wait_all();
}

// A rank whose tensor was read in place, by mapping or by the kernel, returns when everybody is
// done with it.
bool CpuGroup::leave_together() {
  const uint64_t end = arenas_[rank_].step(0).load(std::memory_order_relaxed) + 1;
  arenas_[rank_].step(0).store(end, std::memory_order_release);
  watch_.ring();
  for (int i = 1; i < size_; ++i) {
    const int p = (rank_ + i) % size_;
    const bool there = watch_.wait(
        p, [&] { return has_reached(arenas_[p].step(0).load(std::memory_order_acquire), end); });
    if (!there) return false;
  }
  return true;
}

bool CpuGroup::is_any_symmetric(uint32_t number) const {
  for (const ArenaView& arena : arenas_) {
    const Entry& e = arena.entry(number & 1);
    if (Place::segment_of(e.where) != 0 || Place::segment_of(e.where_out) != 0) return true;
  }
  return false;
}

void CpuGroup::run_alone(const Call& call) {
  const Plan plan = plan_for(call, longest_part(call, size_));
  const Task task = cut(call, plan);
  const uint64_t count = task.in.count_of(0);
  if (count == 0) return;
  const CpuReducer reducer =
      reducer_of(ops_, call.dtype, call.reduce, call.factor, is_streamed(call));
  const void* const source = task.in.at(0);
  if (reducer.scales()) {
    reducer.scale(task.out.at(0), source, count, reducer.factor);
  } else if (task.out.at(0) != source) {
    ops_.copy(task.out.at(0), source, count * task.element);
  }
}

void CpuGroup::refuse(const std::string& why) noexcept {
  if (fork_generation() != made_in_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (watch_.is_closed() || watch_.is_revoked()) return;
  refuse_locked(why);
}

void CpuGroup::refuse_locked(const std::string& why) noexcept {
  if (size_ == 1) return;
  watch_.begin(number_, timeout_);
  if (!await_last_call()) return;
  ++number_;
  has_refused_ = true;
  Entry& mine = arenas_[rank_].entry(number_ & 1);
  std::strncpy(reinterpret_cast<char*>(mine.data), why.c_str(), Entry::kInlineBytes - 1);
  mine.data[Entry::kInlineBytes - 1] = '\0';
  mine.signature = Signature::refused().word;
  mine.where = mine.where_out = 0;
  mine.number.store(number_, std::memory_order_release);
  watch_.ring();
}

// An entry may be overwritten, two calls later, when every peer has come to the call in between. A
// call that completes has seen that; one that was refused did not wait for it.
bool CpuGroup::await_last_call() {
  for (int i = 1; has_refused_ && i < size_; ++i) {
    const int p = (rank_ + i) % size_;
    const std::atomic<uint32_t>& theirs = arenas_[p].entry(number_ & 1).number;
    const auto came = [&] { return theirs.load(std::memory_order_acquire) == number_; };
    if (!watch_.wait(p, came)) return false;
  }
  has_refused_ = false;
  return true;
}

std::shared_ptr<Message> CpuGroup::send(int peer, uint32_t tag, DType dtype, uint64_t count,
                                        const void* data) {
  check_not_forked("send");
  check_usable("send");
  return messages_.send(peer, tag, dtype, count, data, timeout());
}

std::shared_ptr<Message> CpuGroup::receive(int peer, uint32_t tag, DType dtype, uint64_t count,
                                           void* data) {
  check_not_forked("recv");
  check_usable("recv");
  return messages_.receive(peer, tag, dtype, count, data, timeout());
}

int CpuGroup::progress() { return fork_generation() == made_in_ ? messages_.progress() : 0; }

int CpuGroup::wait(const std::shared_ptr<Message>& message, milliseconds timeout) {
  check_not_forked("wait");
  return messages_.wait(message, timeout.count() > 0 ? timeout : this->timeout());
}

bool CpuGroup::is_done(const std::shared_ptr<Message>& message) {
  return messages_.is_done(message);
}

std::shared_ptr<SymmetricMemory> CpuGroup::allocate(size_t bytes) {
  check_not_forked("allocate");
  const std::lock_guard<std::mutex> lock(mutex_);
  check_usable("allocate");
  return heap_.allocate(*store_, rank_, size_, bytes, timeout_, watch_);
}

void CpuGroup::abort(const std::string& why) noexcept {
  if (fork_generation() == made_in_) watch_.revoke(Error::Kind::kAborted, rank_, why);
}

void CpuGroup::close() noexcept {
  if (fork_generation() != made_in_ || watch_.is_closed()) return;
  watch_.close();
}

std::string CpuGroup::error() const {
  return watch_.is_revoked() ? watch_.failure().why : std::string();
}

Explanation CpuGroup::explain(Collective collective, uint64_t bytes, bool symmetric) const {
  return dda::explain(collective, bytes, symmetric, layout_, tuning_);
}

void CpuGroup::time(const Call& call, int iterations, double* out) {
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  if (call.in_counts != nullptr || call.out_counts != nullptr) {
    throw Error(Error::Kind::kInvalid, "only calls with equal parts are timed");
  }
  // A short call costs little more than reading the clock: such calls are timed by the hundred.
  const int most = call.count * size_of(call.dtype) <= 16 << 10 ? 100 : 1;
  for (int i = 0; i < iterations; i += most) {
    const int batch = std::min(most, iterations - i);
    const Clock::time_point begin = Clock::now();
    for (int k = 0; k < batch; ++k) run(call);
    std::fill(out + i, out + i + batch, microseconds(Clock::now() - begin) / batch);
  }
}

void CpuGroup::throw_mismatch(const Call& call) const {
  const Signature mine = sign(call, size_);
  std::string text =
      call_name(name_of(call.collective), number_) + " on rank " + std::to_string(rank_) + ": ";
  int blamed = -1;
  for (int p = 0; p < size_; ++p) {
    const Entry& theirs = arenas_[p].entry(number_ & 1);
    const Signature signature = {theirs.signature};
    if (p == rank_ || mine.agrees_with(signature)) continue;
    if (blamed < 0) blamed = p;
    text += "rank " + std::to_string(p);
    if (signature == Signature::refused()) {
      const char* why = reinterpret_cast<const char*>(theirs.data);
      text += " refused it (" + std::string(why, ::strnlen(why, Entry::kInlineBytes)) + "); ";
    } else {
      text += " called " + signature.describe() + "; ";
    }
  }
  throw Error(Error::Kind::kMismatch,
              text + "this rank called " + mine.describe() +
                  ". No output was written. All ranks must make the same calls in the same order.",
              blamed);
}

void CpuGroup::throw_failure(const char* what, uint32_t number) const {
  const std::string where = call_name(what, number) + " on rank " + std::to_string(rank_);
  if (!watch_.is_revoked()) {
    throw Error(Error::Kind::kAborted, where + ": the group was destroyed while the call ran");
  }
  const Failure failure = watch_.failure();
  const std::string by = failure.by >= 0 && failure.by != rank_
                             ? " (found by rank " + std::to_string(failure.by) + ")"
                             : "";
  throw Error(failure.kind,
              where + ": " + failure.why + by +
                  ". The group cannot be used any more; destroy it and make a new one.",
              failure.culprit);
}

}  // namespace dda
