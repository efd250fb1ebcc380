// The handles of calls on GPUs. A call is over for the host when it is enqueued; wait() orders the
// stream of the moment behind it, and waits on the host only where it is given a time.
#pragma once

#include <c10/core/Event.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "torch/work.h"

namespace dda {

class GpuWork final : public c10d::Work {
 public:
  // When the end of the calls is marked in their stream, for others to wait for.
  //   kNever  they were enqueued on the caller's stream
  //   kNow    at once
  //   kLater  when somebody asks for it. A mark behind a message that waits for its peer can hold
  //   up
  //           what other streams enqueue after it, the peer's message among it, where streams share
  //           a queue of the hardware (CUDA_DEVICE_MAX_CONNECTIONS)
  enum class Mark { kNever, kNow, kLater };

  // `check` throws if the group has failed. `kept` lives until the calls are done.
  GpuWork(c10d::OpType type, c10::cuda::CUDAStream stream, Mark mark, Tensors results, Tensors kept,
          std::function<void()> check);
  ~GpuWork() override;

  void mark_end();
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  Tensors result() override { return results_; }
  FuturePtr getFuture() override;

 private:
  const c10::cuda::CUDAStream stream_;
  const Mark mark_;
  std::optional<c10::Event> end_;
  const Tensors results_;
  Tensors kept_;
  const std::function<void()> check_;
  FuturePtr future_;
};

}  // namespace dda
