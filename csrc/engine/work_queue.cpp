#include "engine/work_queue.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

namespace dda {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Longer than Python needs from issuing a functional collective to waiting for it, short against a
// call that is worth overlapping.
constexpr microseconds kGrace{100};
// A worker without work looks for some a grace later, then after twice that, and so on; at the
// longest pause it looks a few times more before it sleeps until it is woken. To wake it costs the
// caller more than a small call, and so does a worker that often interrupts callers who steal.
constexpr microseconds kLongestPause{1000};
constexpr int kLastLooks = 20;

}  // namespace

WorkQueue::WorkQueue() : owner_(getpid()) {}

void WorkQueue::check_owner() const {
  if (getpid() == owner_) return;
  throw std::runtime_error("dda: a process group cannot be used in a child made by fork()");
}

void WorkQueue::push(std::shared_ptr<Job> job) {
  check_owner();
  Lock lock(mutex_);
  job->ripe_ = Clock::now() + kGrace;
  jobs_.push_back(std::move(job));
  pending_.fetch_add(1, std::memory_order_relaxed);
  if (asleep_ > 0 && asleep_ == ready_) {
    wake_.notify_one();
  } else if (ready_ == 0 && !start_worker()) {
    while (!jobs_.empty() && !running_) run_front(lock, false);
  }
}

void WorkQueue::finish(const Job& job) {
  check_owner();
  Lock lock(mutex_);
  while (!job.is_done()) {
    if (running_) {
      finished_.wait(lock);
    } else {
      run_front(lock, false);
    }
  }
}

void WorkQueue::drain() {
  check_owner();
  std::shared_ptr<Job> last;
  {
    Lock lock(mutex_);
    if (!jobs_.empty()) last = jobs_.back();
    if (!last) finished_.wait(lock, [&] { return !running_; });
  }
  if (last) finish(*last);
}

bool WorkQueue::wait_for(const Job& job, milliseconds timeout) {
  check_owner();
  Lock lock(mutex_);
  wake_.notify_one();  // it takes a worker
  return finished_.wait_for(lock, timeout, [&] { return job.is_done(); });
}

void WorkQueue::close(milliseconds patience) {
  if (getpid() != owner_) return;
  Lock lock(mutex_);
  closed_ = true;
  wake_.notify_all();
  finished_.wait_for(lock, patience, [&] { return workers_ == 0; });
}

bool WorkQueue::start_worker() {
  if (closed_) return false;
  try {
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  } catch (const std::system_error&) {
    return false;  // the system has no thread to spare
  }
  ++workers_;
  ++ready_;
  return true;
}

void WorkQueue::work() {
  // A timed sleep may otherwise last 50 µs longer than asked for.
  prctl(PR_SET_TIMERSLACK, 1000);
  prctl(PR_SET_NAME, "dda-worker");
  Lock lock(mutex_);
  microseconds pause = kGrace;
  int last_looks = 0;
  while (!closed_ || !jobs_.empty()) {
    const bool is_ripe = !jobs_.empty() && (closed_ || Clock::now() >= jobs_.front()->ripe_);
    if (is_ripe && !running_) {
      run_front(lock, true);
      pause = kGrace;
      last_looks = 0;
    } else if (!jobs_.empty() && !running_) {
      wake_.wait_for(lock, kGrace);
    } else if (!running_ && last_looks < kLastLooks) {
      wake_.wait_for(lock, pause);
      pause = std::min(2 * pause, kLongestPause);
      if (pause == kLongestPause) ++last_looks;
    } else {
      ++asleep_;
      wake_.wait(lock);
      --asleep_;
      last_looks = 0;
    }
  }
  --workers_;
  --ready_;
  finished_.notify_all();
}

void WorkQueue::run_front(Lock& lock, bool is_worker) {
  std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  running_ = true;
  lock.unlock();
  job->run();
  lock.lock();
  running_ = false;
  job->done_.store(true, std::memory_order_release);
  pending_.fetch_sub(1, std::memory_order_release);
  finished_.notify_all();
  ready_ -= is_worker;
  if (!jobs_.empty() && asleep_ > 0) {
    wake_.notify_one();
  } else if (!jobs_.empty() && ready_ == 0 && job->has_listener()) {
    start_worker();
  }
  lock.unlock();
  job->announce();
  job.reset();  // may free tensors, which must not happen under the lock
  lock.lock();
  ready_ += is_worker;
}

}  // namespace dda
