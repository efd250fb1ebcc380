#include "torch/messages.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "torch/calls.h"
#include "torch/errors.h"
#include "torch/staging.h"

namespace dda {
namespace {

using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

// The courier's pause between two looks grows from the shortest to the longest.
constexpr microseconds kShortestPause{50};
constexpr microseconds kLongestPause{1000};

microseconds longer(microseconds pause) { return std::min(pause * 2, kLongestPause); }

}  // namespace

MessageWork::MessageWork(c10d::OpType type, std::shared_ptr<Group> group,
                         std::shared_ptr<Message> message, at::Tensor tensor, at::Tensor memory)
    : Work(-1, type),
      group_(std::move(group)),
      message_(std::move(message)),
      tensor_(std::move(tensor)),
      memory_(std::move(memory)) {}

bool MessageWork::isSuccess() const {
  const std::lock_guard<std::mutex> lock(ending_);
  return has_ended_ && !error_;
}

std::exception_ptr MessageWork::exception() const {
  const std::lock_guard<std::mutex> lock(ending_);
  return error_;
}

int MessageWork::sourceRank() const {
  const std::lock_guard<std::mutex> lock(ending_);
  TORCH_CHECK(has_ended_, "dda recv: the source is known when the message has come; wait first");
  return peer_;
}

bool MessageWork::poll() noexcept {
  try {
    if (!group_->is_done(message_)) return false;
    end(nullptr);
  } catch (const Error& error) {
    end(std::make_exception_ptr(RaisedError(error)));
  }
  return true;
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) {
    try {
      group_->wait(message_, kNoTimeout);
      end(nullptr);
    } catch (const Error& error) {
      end(std::make_exception_ptr(RaisedError(error)));
    }
  } else {
    const auto deadline = Clock::now() + timeout;
    for (microseconds pause{1}; !poll(); pause = longer(pause)) {
      if (Clock::now() >= deadline) {
        throw overdue(opType_ == c10d::OpType::SEND ? "send" : "recv", group_->rank(), timeout);
      }
      group_->progress();
      std::this_thread::sleep_for(pause);
    }
  }
  if (std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

void MessageWork::end(std::exception_ptr error) {
  {
    const std::lock_guard<std::mutex> lock(ending_);
    if (has_ended_) return;
    try {
      if (!error) peer_ = group_->wait(message_, kNoTimeout);  // done: it only tells the peer
      if (!error && !memory_.is_same(tensor_) && opType_ != c10d::OpType::SEND) {
        overwrite(tensor_, memory_);
      }
    } catch (...) {
      error = std::current_exception();
    }
    error_ = error;
    has_ended_ = true;
  }
  future_.complete({tensor_}, std::move(error));
}

void Courier::look_after(c10::intrusive_ptr<MessageWork> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!has_thread_) {
    try {
      std::thread([self = shared_from_this()] { self->work(); }).detach();
      has_thread_ = true;
    } catch (const std::system_error&) {
      return;  // no thread to spare: the message moves while somebody waits
    }
  }
  outstanding_.push_back(std::move(work));
  if (is_asleep_) wake_.notify_one();
}

void Courier::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  wake_.notify_one();
}

void Courier::work() {
  prctl(PR_SET_NAME, "dda-courier");
  std::vector<c10::intrusive_ptr<MessageWork>> round;
  microseconds pause = kShortestPause;
  for (bool is_last = false; !is_last;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      outstanding_.insert(outstanding_.end(), std::make_move_iterator(round.begin()),
                          std::make_move_iterator(round.end()));
      if (outstanding_.empty() && pause == kLongestPause && !closed_) {
        is_asleep_ = true;
        wake_.wait(lock);
        is_asleep_ = false;
        pause = kShortestPause;
      } else if (!closed_) {
        wake_.wait_for(lock, pause);
      }
      is_last = closed_;
      round.swap(outstanding_);
      outstanding_.clear();
    }
    group_->progress();
    const auto ended =
        std::remove_if(round.begin(), round.end(), [](const auto& work) { return work->poll(); });
    pause = ended == round.end() ? longer(pause) : kShortestPause;
    round.erase(ended, round.end());
  }
}

c10::intrusive_ptr<MessageWork> send_message(const std::shared_ptr<Group>& group,
                                             const at::Tensor& tensor, int peer, int tag) {
  const Operation op = calls::send(tensor);
  const at::Tensor memory = is_plain(tensor) ? tensor : contiguous_copy(tensor);
  auto message = raising([&] {
    return group->send(peer, static_cast<uint32_t>(tag), op.call.dtype, op.call.count,
                       memory.const_data_ptr());
  });
  return c10::make_intrusive<MessageWork>(op.type, group, std::move(message), tensor, memory);
}

c10::intrusive_ptr<MessageWork> receive_message(const std::shared_ptr<Group>& group,
                                                const at::Tensor& tensor, int peer, int tag) {
  const Operation op = calls::receive(tensor);
  const at::Tensor memory = is_plain(tensor) ? tensor : stand_in(tensor);
  auto message = raising([&] {
    return group->receive(peer, static_cast<uint32_t>(tag), op.call.dtype, op.call.count,
                          memory.mutable_data_ptr());
  });
  return c10::make_intrusive<MessageWork>(peer < 0 ? c10d::OpType::RECVANYSOURCE : op.type, group,
                                          std::move(message), tensor, memory);
}

}  // namespace dda
