// Send and receive as torch sees them: a handle for each message, and a thread that moves messages
// on while nobody waits.
//
// The courier looks after all outstanding messages of a group. Its thread starts with the first
// message. While there is something to move it looks often, less and less often when nothing
// moves, and it sleeps when nothing is outstanding. A thread that waits for a message moves them
// all itself and needs no courier.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "torch/work.h"

namespace dda {

class MessageWork final : public c10d::Work {
 public:
  // `tensor` is the user's; `memory` the contiguous tensor that is sent or received into.
  MessageWork(c10d::OpType type, std::shared_ptr<Group> group, std::shared_ptr<Message> message,
              at::Tensor tensor, at::Tensor memory);

  bool isCompleted() override { return poll(); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // As QueuedWork::wait.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  // The rank (in the group) at the other end.
  int sourceRank() const override;
  Tensors result() override { return {tensor_}; }
  FuturePtr getFuture() override { return future_.get(); }

  // Whether the message is done; moves nothing.
  bool poll() noexcept;

 private:
  void end(std::exception_ptr error);

  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Message> message_;
  const at::Tensor tensor_;
  const at::Tensor memory_;
  mutable std::mutex ending_;  // held by the thread that ends the message, the first to see it done
  bool has_ended_ = false;
  std::exception_ptr error_;
  int peer_ = -1;
  LazyFuture future_;
};

class Courier : public std::enable_shared_from_this<Courier> {
 public:
  explicit Courier(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  void look_after(c10::intrusive_ptr<MessageWork> work);
  // Ends the thread soon; does not wait for it. The group is closed before.
  void close();

 private:
  void work();

  const std::shared_ptr<Group> group_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<c10::intrusive_ptr<MessageWork>> outstanding_;
  bool has_thread_ = false;
  bool is_asleep_ = false;
  bool closed_ = false;
};

// `tag` as torch has it. A receive with peer -1 takes from any rank.
c10::intrusive_ptr<MessageWork> send_message(const std::shared_ptr<Group>& group,
                                             const at::Tensor& tensor, int peer, int tag);
c10::intrusive_ptr<MessageWork> receive_message(const std::shared_ptr<Group>& group,
                                                const at::Tensor& tensor, int peer, int tag);

}  // namespace dda
