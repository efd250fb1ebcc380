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
  // `check` throws if the group has failed. `kept` lives until the calls are done. `is_async`: they
  // were enqueued on a stream other than the caller's.
  GpuWork(c10d::OpType type, c10::cuda::CUDAStream stream, bool is_async, Tensors results,
          Tensors kept, std::function<void()> check);
  ~GpuWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  Tensors result() override { return results_; }
  FuturePtr getFuture() override;

 private:
  const c10::cuda::CUDAStream stream_;
  std::optional<c10::Event> end_;  // of asynchronous calls
  const Tensors results_;
  Tensors kept_;
  const std::function<void()> check_;
  FuturePtr future_;
};

}  // namespace dda
