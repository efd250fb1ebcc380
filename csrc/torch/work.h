// The handles that a backend's calls return.
//
// A synchronous call is over when it returns, so its handle only remembers the result. An
// asynchronous one is a job in the group's queue; waiting for its handle may run the job in the
// waiting thread (see engine/work_queue.h). Futures are made when somebody asks for one.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/work_queue.h"
#include "torch/errors.h"
#include "torch/operation.h"

namespace dda {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

// A future of a list of tensors that can be asked for before, while and after it is completed.
class LazyFuture {
 public:
  FuturePtr get();
  bool has_listener();
  void complete(Tensors results, std::exception_ptr error);

 private:
  void settle();

  std::mutex mutex_;
  FuturePtr future_;
  bool is_complete_ = false;
  Tensors results_;
  std::exception_ptr error_;
};

class FinishedWork final : public c10d::Work {
 public:
  FinishedWork(c10d::OpType type, Tensors results) : Work(-1, type), results_(std::move(results)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  Tensors result() override { return results_; }
  FuturePtr getFuture() override;

 private:
  Tensors results_;
};

// What wait() raises when the time that it was given is up.
RaisedError overdue(const char* name, int rank, std::chrono::milliseconds timeout);

// The asynchronous operations of one call.
class BatchJob final : public Job {
 public:
  BatchJob(std::shared_ptr<Group> group, Batch batch);

  // Of a job that is done.
  std::exception_ptr error() const { return error_; }
  Tensors results() const;
  FuturePtr future() { return future_.get(); }
  const char* name() const {
    return batch_.empty() ? "an empty block" : name_of(batch_.front().call.collective);
  }
  int rank() const { return group_->rank(); }

 private:
  void run() noexcept override;
  void announce() noexcept override { future_.complete(results(), error_); }
  bool has_listener() override { return future_.has_listener(); }

  std::shared_ptr<Group> group_;
  Batch batch_;
  std::optional<at::ThreadLocalState> caller_;  // so that an active profiler sees the call
  std::exception_ptr error_;
  LazyFuture future_;
};

class QueuedWork final : public c10d::Work {
 public:
  QueuedWork(c10d::OpType type, std::shared_ptr<BatchJob> job, std::shared_ptr<WorkQueue> queue)
      : Work(-1, type), job_(std::move(job)), queue_(std::move(queue)) {}

  bool isCompleted() override { return job_->is_done(); }
  bool isSuccess() const override { return job_->is_done() && !job_->error(); }
  std::exception_ptr exception() const override;
  // Throws the job's error. A `timeout` that passes raises dda.Timeout and leaves the job running;
  // what ends the job is the timeout of its own call.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  Tensors result() override { return job_->results(); }
  FuturePtr getFuture() override { return job_->future(); }

 private:
  std::shared_ptr<BatchJob> job_;
  std::shared_ptr<WorkQueue> queue_;
};

// The handle of a coalescing block: all the calls that were issued in it.
class CombinedWork final : public c10d::Work {
 public:
  explicit CombinedWork(std::vector<WorkPtr> parts)
      : Work(-1, c10d::OpType::COALESCED), parts_(std::move(parts)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  Tensors result() override;
  FuturePtr getFuture() override;

 private:
  std::vector<WorkPtr> parts_;
};

}  // namespace dda
