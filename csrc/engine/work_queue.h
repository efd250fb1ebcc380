// A group's asynchronous calls, run one after another in the order in which they were issued.
//
// A *job* runs in whichever thread comes first: in a worker thread of the queue, or in a thread
// that waits for the job and *steals* it, together with all jobs before it. Most callers wait at
// once, and stealing spares them two changes of threads; so a worker gives each job a short
// *grace* before it takes it. Whoever runs a job then *announces* it, which may call the user's
// code. While that code runs the next job can run already, in a further worker if need be, since
// the user's code may wait for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include <sys/types.h>

namespace dda {

class Job {
 public:
  virtual ~Job() = default;
  bool is_done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend class WorkQueue;
  // Runs once. Ends within the timeout of its own call.
  virtual void run() noexcept = 0;
  // Runs once, after is_done() has become true; may call the user's code.
  virtual void announce() noexcept {}
  virtual bool has_listener() { return false; }

  std::atomic<bool> done_{false};
  std::chrono::steady_clock::time_point ripe_;  // when a worker may take it
};

// Threads share a queue by shared_ptr; its workers live until `close`.
class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  WorkQueue();

  // Whether every job is done. Cheap.
  bool is_idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // Starts a worker if there is none. Where there can be none, runs what is queued here.
  void push(std::shared_ptr<Job> job);
  // Returns when `job` is done, having run what had not begun. Like `drain`, it waits for no more
  // than calls that another thread is running, which have timeouts of their own.
  void finish(const Job& job);
  // Returns when every job pushed before the call is done.
  void drain();
  // Waits for `job` and runs nothing; false if it is not done after `timeout`.
  bool wait_for(const Job& job, std::chrono::milliseconds timeout);
  // Sends the workers home once they have run what is queued, and waits for them for at most
  // `patience`. The caller sees to it that what is queued fails fast.
  void close(std::chrono::milliseconds patience);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void check_owner() const;
  bool start_worker();
  void work();
  void run_front(Lock& lock, bool is_worker);

  const pid_t owner_;  // after a fork the workers are missing and the mutex may stay locked
  std::atomic<int> pending_{0};
  std::mutex mutex_;
  std::condition_variable wake_;      // for workers
  std::condition_variable finished_;  // for those who wait for a job, and for `close`
  std::deque<std::shared_ptr<Job>> jobs_;
  bool running_ = false;  // some thread is inside Job::run
  bool closed_ = false;
  int workers_ = 0;
  int ready_ = 0;   // workers that are not announcing
  int asleep_ = 0;  // workers that must be woken
};

}  // namespace dda
