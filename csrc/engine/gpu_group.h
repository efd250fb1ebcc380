// A group on GPUs: the arenas of all ranks, mapped here, and the kernels that run over them.
//
// A call is a launch on the caller's stream; nothing waits on the host. What goes wrong on a device
// is found by a thread of the host (gpu_watchdog.h), which revokes the group on all ranks; the next
// call of each raises.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "device/gpu/call.h"
#include "device/gpu/kernels.h"
#include "engine/gpu_choose.h"
#include "engine/gpu_heap.h"
#include "engine/watch.h"
#include "memory/gpu_arena.h"

namespace dda {

class GpuGroup {
 public:
  // Collective. `device` is the ordinal of this rank's GPU. Throws on all ranks if any fails; an
  // Error(kSystem) with a peer says that its memory is out of reach.
  static std::shared_ptr<GpuGroup> create(Bootstrap& store, const GroupOptions& options,
                                          int device);
  ~GpuGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }

  // Enqueues a call on `stream` (a cudaStream_t) of this group's device, which may be capturing.
  // Calls from several streams run in the order in which they come. Messages (kSend, kReceive; the
  // peer is call.root) run in the order of their streams: one for each direction to each peer lets
  // none wait for another. Throws Error.
  void launch(const Call& call, void* stream);
  // Takes the place of a call that this rank cannot make; see Group::refuse.
  void refuse(const std::string& why) noexcept;

  // Collective: zeroed memory that all ranks map. Waits for the GPU; not within a capture.
  std::unique_ptr<GpuTensor> allocate(Bootstrap& store, uint64_t bytes);

  void abort(const std::string& why) noexcept;
  // Leaves the group: waits a little for what was launched, ends what hangs, lets go of memory.
  void close() noexcept;
  std::string error() const;
  void set_timeout(milliseconds timeout);
  uint64_t sequence() const { return number_; }
  Explanation explain(Collective collective, uint64_t bytes) const;

  // For the watchdog: looks at the peers and at what the kernels reported.
  void look() noexcept;

  // What a stream is being captured into.
  struct Capture {
    uint64_t id = 0;
    void* graph = nullptr;  // a cudaGraph_t
  };

  GpuGroup(const GroupOptions& options, int device, const Layout& host_layout,
           const GpuLayout& layout, std::shared_ptr<GpuArenas> arenas);

 private:
  void check_usable(const char* what) const;
  void post(const Call& call, void* stream);
  void start(const void* kernel, const GpuPlan& plan, GpuCall& parameters, void* stream);
  void follow_last(void* stream, const Capture& capture);
  void keep_for(void* graph);
  void offer_symmetric(const Call& call, GpuCall& parameters) const;
  void log(uint64_t number, uint64_t signature);
  void report_failure();
  void compare_logs();
  void look_for_leavers();

  const int rank_, size_, device_;
  std::atomic<milliseconds> timeout_;
  const uint32_t made_in_;  // fork_generation() of the process that made it
  const Layout host_layout_;
  const GpuLayout layout_;
  std::shared_ptr<GpuArenas> arenas_;  // until it is closed
  const Neighbours neighbours_;
  std::vector<ArenaView> views_;
  Watch watch_;

  GpuHeap heap_;
  std::mutex mutex_;  // one launch at a time
  std::atomic<uint64_t> number_{0};
  void* last_stream_ = nullptr;  // of the last call that was not captured
  bool has_launched_ = false;
  void* last_captured_ = nullptr;  // the stream of the last one that was
  uint64_t last_capture_ = 0;
  const bool launches_early_;
  void* order_ = nullptr;  // a cudaEvent_t
  uint64_t compared_ = 0;  // calls up to here were compared with the peers'
  bool has_reported_ = false;
};

}  // namespace dda
