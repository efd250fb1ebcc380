#include "torch/work.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "torch/errors.h"

namespace dda {
namespace {

FuturePtr make_future() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

FuturePtr LazyFuture::get() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!future_) {
    future_ = make_future();
    if (is_complete_) settle();
  }
  return future_;
}

bool LazyFuture::has_listener() {
  std::unique_lock<std::mutex> lock(mutex_);
  return static_cast<bool>(future_);
}

void LazyFuture::complete(Tensors results, std::exception_ptr error) {
  std::unique_lock<std::mutex> lock(mutex_);
  results_ = std::move(results);
  error_ = std::move(error);
  is_complete_ = true;
  if (!future_) return;
  lock.unlock();  // listeners may ask for the future
  settle();
}

void LazyFuture::settle() {
  if (error_) {
    future_->setError(error_);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
}

FuturePtr FinishedWork::getFuture() {
  FuturePtr future = make_future();
  future->markCompleted(c10::IValue(results_));
  return future;
}

RaisedError overdue(const char* name, int rank, std::chrono::milliseconds timeout) {
  return RaisedError(
      Error(Error::Kind::kTimeout, std::string(name) + " on rank " + std::to_string(rank) +
                                       ": Timed out after " + std::to_string(timeout.count()) +
                                       " ms in wait(); the call goes on, so wait for it again"));
}

BatchJob::BatchJob(std::shared_ptr<Group> group, Batch batch)
    : group_(std::move(group)), batch_(std::move(batch)) {
  if (at::hasCallbacks()) caller_.emplace();
}

void BatchJob::run() noexcept {
  std::optional<at::ThreadLocalStateGuard> guard;
  if (caller_) guard.emplace(*caller_);
  try {
    for (const Operation& operation : batch_) operation.run(*group_);
  } catch (...) {
    error_ = std::current_exception();
  }
}

Tensors BatchJob::results() const {
  Tensors all;
  for (const Operation& operation : batch_) {
    for (at::Tensor& tensor : operation.results()) all.push_back(std::move(tensor));
  }
  return all;
}

std::exception_ptr QueuedWork::exception() const {
  return job_->is_done() ? job_->error() : nullptr;
}

bool QueuedWork::wait(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) {
    queue_->finish(*job_);
  } else if (!queue_->wait_for(*job_, timeout)) {
    throw overdue(job_->name(), job_->rank(), timeout);
  }
  if (job_->error()) std::rethrow_exception(job_->error());
  return true;
}

bool CombinedWork::isCompleted() {
  for (const WorkPtr& part : parts_) {
    if (!part->isCompleted()) return false;
  }
  return true;
}

bool CombinedWork::isSuccess() const {
  for (const WorkPtr& part : parts_) {
    if (!part->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr CombinedWork::exception() const {
  for (const WorkPtr& part : parts_) {
    if (std::exception_ptr error = part->exception()) return error;
  }
  return nullptr;
}

bool CombinedWork::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  if (timeout <= kNoTimeout) {
    for (const WorkPtr& part : parts_) part->wait(timeout);
    return true;
  }
  const Clock::time_point deadline = Clock::now() + std::min(timeout, kLongestTimeout);
  for (const WorkPtr& part : parts_) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    part->wait(std::max(left, milliseconds{1}));
  }
  return true;
}

Tensors CombinedWork::result() {
  Tensors all;
  for (const WorkPtr& part : parts_) {
    for (at::Tensor& tensor : part->result()) all.push_back(std::move(tensor));
  }
  return all;
}

FuturePtr CombinedWork::getFuture() {
  c10::List<FuturePtr> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const WorkPtr& part : parts_) futures.push_back(part->getFuture());
  const auto join = [parts = parts_](c10::ivalue::Future& done) {
    done.value();  // throws the error of a part
    Tensors all;
    for (const WorkPtr& part : parts) {
      for (at::Tensor& tensor : part->result()) all.push_back(std::move(tensor));
    }
    return c10::IValue(std::move(all));
  };
  return c10::collectAll(futures)->then(join, c10::ListType::create(c10::TensorType::get()));
}

}  // namespace dda
