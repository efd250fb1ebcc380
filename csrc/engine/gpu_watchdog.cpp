#include "engine/gpu_watchdog.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/gpu_group.h"

namespace dda {
namespace {

constexpr std::chrono::milliseconds kPeriod{2};

class Watchdog {
 public:
  void add(GpuGroup* group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    groups_.push_back(group);
    // A forked child has no such thread, and no use of GPUs.
    if (generation_ != fork_generation()) {
      generation_ = fork_generation();
      std::thread([this] { run(); }).detach();
    }
    wake_.notify_one();
  }
  void remove(GpuGroup* group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    groups_.erase(std::remove(groups_.begin(), groups_.end(), group), groups_.end());
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !groups_.empty(); });
      for (GpuGroup* const group : groups_) group->look();
      lock.unlock();
      std::this_thread::sleep_for(kPeriod);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<GpuGroup*> groups_;
  uint32_t generation_ = UINT32_MAX;
};

// Never destroyed: its thread runs to the end of the process.
Watchdog& watchdog() {
  static auto* const it = new Watchdog;
  return *it;
}

}  // namespace

void watch_over(GpuGroup* group) { watchdog().add(group); }
void unwatch(GpuGroup* group) { watchdog().remove(group); }

}  // namespace dda
