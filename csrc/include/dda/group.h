// A group of ranks on one host whose processes share memory: the engine's public face. No torch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dda/error.h"
#include "dda/types.h"

namespace dda {

using std::chrono::milliseconds;

// Longer timeouts count as this one: ten years.
inline constexpr milliseconds kLongestTimeout{315'360'000'000};

// What the engine needs of a key-value store to let ranks find each other. Keys are the engine's
// own; one store may serve many groups as long as each has a prefix of its own.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key is there; throws Error(kTimeout) after `timeout`.
  virtual std::string get(const std::string& key, milliseconds timeout) = 0;
  // Adds to a counter and returns its new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
};

struct GroupOptions {
  int rank = 0;
  int size = 1;
  milliseconds timeout{1'800'000};  // of a call that gives none, and of the rendezvous
  size_t slot_bytes = 0;            // of each staging slot; 0: the default, DDA_SLOT_BYTES
  uint32_t calls_before = 0;        // where the call counter begins; tests begin at its wrap
  int threads = 1;                  // that a large call may use; the minimum over ranks counts
  // Runs body(0, arg) … body(n-1, arg), each once, in any threads, ascending within a thread.
  void (*parallel)(int n, void (*body)(int, void*), void* arg) = nullptr;
};

// One call of a collective, the same on every rank but for the pointers.
//
// `count` is in elements: of the whole tensor for all_reduce, reduce, broadcast; of one rank's part
// for all_gather, gather (what each contributes), reduce_scatter, scatter (what each receives) and
// all_to_all (what each sends to each). Where the parts differ, `in_counts` and `out_counts` give
// one count for each rank (all_gather: out_counts; reduce_scatter: in_counts; all_to_all: both) and
// `count` is this rank's own part (all_to_all: ignored). The parts of gather and scatter are equal.
// Parts lie behind each other in `in` and `out`, unless `in_parts` or `out_parts` gives a pointer
// for each. `in` may equal `out` (in place); for all_gather `in` may be this rank's part of `out`,
// for reduce_scatter `out` may be this rank's part of `in`. They must not overlap otherwise.
struct Call {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kAuto;
  int root = 0;
  uint64_t count = 0;
  const void* in = nullptr;
  void* out = nullptr;
  const void* const* in_parts = nullptr;
  void* const* out_parts = nullptr;
  const int64_t* in_counts = nullptr;
  const int64_t* out_counts = nullptr;
  double factor = 1.0;      // of ReduceOp::kPremulSum
  milliseconds timeout{0};  // 0: the group's
};

// Why a size takes the path it takes; see Group::explain.
struct Explanation {
  std::string algorithm;  // "flat", "tree", …
  std::string reason;
  int blocks;
  uint64_t chunk_bytes;
};

// A symmetric tensor's memory: the same size on every rank, addressable by all of them.
struct SymmetricMemory;

// An outstanding send or receive.
struct Message;

class Group {
 public:
  // Collective over the ranks of the group. Throws on every rank if any rank fails; Error::kind
  // kSystem with peer() set means that this peer cannot share memory (it is on another host).
  // The group keeps the bootstrap, for allocate().
  static std::shared_ptr<Group> create(std::shared_ptr<Bootstrap> bootstrap,
                                       const GroupOptions& options);

  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Performs a call and returns when this rank's part of it is done. Calls of several threads are
  // serialised in the order in which they come. Throws Error.
  virtual void run(const Call& call) = 0;

  // Takes the place of a call that this rank cannot make because of an error of its own: every
  // peer's call raises Error(kMismatch) that quotes `why` (shortened). Does not throw, does not
  // wait for peers beyond the call before.
  virtual void refuse(const std::string& why) noexcept = 0;

  // Point to point. Messages of one pair and tag arrive in order; peer -1 receives from any rank.
  // A message lives until it is done; `data` must live as long. Once the group's timeout has passed
  // since the call, progress() fails it, whether or not somebody waits for it.
  virtual std::shared_ptr<Message> send(int peer, uint32_t tag, DType dtype, uint64_t count,
                                        const void* data) = 0;
  virtual std::shared_ptr<Message> receive(int peer, uint32_t tag, DType dtype, uint64_t count,
                                           void* data) = 0;
  // Moves what can be moved of all outstanding messages without waiting; returns how many are
  // still outstanding. Any thread.
  virtual int progress() = 0;
  // Waits until the message is done, moving all messages meanwhile. Throws Error. Returns the rank
  // at the other end. timeout 0: the group's.
  virtual int wait(const std::shared_ptr<Message>& message, milliseconds timeout) = 0;
  // Whether it is done; throws the message's error. Does not move anything.
  virtual bool is_done(const std::shared_ptr<Message>& message) = 0;

  // Symmetric memory: collective over the group, zeroed, aligned to a page. It lives until the last
  // shared_ptr is gone here, and peers may map it until they drop theirs.
  virtual std::shared_ptr<SymmetricMemory> allocate(size_t bytes) = 0;

  // Ends every wait of this rank and of its peers with an error that names this rank and `why`.
  virtual void abort(const std::string& why) noexcept = 0;
  // Leaves the group: local, bounded, idempotent. A peer that waits for this rank raises.
  virtual void close() noexcept = 0;
  // The error that revoked the group, or "".
  virtual std::string error() const = 0;

  virtual milliseconds timeout() const = 0;
  virtual void set_timeout(milliseconds timeout) = 0;
  // How many collective calls this rank has made.
  virtual uint64_t sequence() const = 0;

  virtual Explanation explain(Collective collective, uint64_t bytes, bool symmetric) const = 0;

  // Runs `call` `iterations` times and writes the microseconds of each to `out` (for benchmarks:
  // no Python and no torch in the loop).
  virtual void time(const Call& call, int iterations, double* out) = 0;
};

// The memory of `memory` on this rank.
void* data_of(const SymmetricMemory& memory);

}  // namespace dda
