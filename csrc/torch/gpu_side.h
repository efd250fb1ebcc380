// The part of a process group that serves tensors on GPUs; made with the group, and brought to life
// by its first call.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "dda/group.h"
#include "torch/operation.h"
#include "torch/options.h"
#include "torch/work.h"

namespace dda {

class GpuSide {
 public:
  virtual ~GpuSide() = default;

  // Enqueues the operations: on the current stream, or asynchronously on the group's own, which
  // first waits for the current one.
  virtual WorkPtr start(c10d::OpType type, bool is_async, Batch batch) = 0;
  // Sends or receives a message to or from call.root, on a stream that is kept for that direction,
  // which first waits for the current one. A group of more than two ranks must have made a call.
  virtual WorkPtr message(c10d::OpType type, Operation operation) = 0;
  // Enqueues one on the current stream.
  virtual void execute(const Operation& operation) = 0;
  // See Group::refuse.
  virtual void refuse(const std::string& why) noexcept = 0;

  // Makes the group now, on `device`. Collective.
  virtual void warm_up(at::Device device) = 0;
  // Collective: `bytes` bytes of symmetric memory on `device`, zeroed, as a uint8 tensor.
  virtual at::Tensor allocate(int64_t bytes, at::Device device) = 0;
  // Returns when all that was enqueued on the current stream is done, if there was any call.
  virtual void synchronize() = 0;
  virtual std::string error() const = 0;
  virtual void set_timeout(milliseconds timeout) = 0;
  virtual Explanation explain(Collective collective, uint64_t bytes) const = 0;
  virtual void abort(const std::string& why) noexcept = 0;
  virtual void close() noexcept = 0;
};

// In a build for the CPU only: one that refuses everything.
std::unique_ptr<GpuSide> make_gpu_side(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, const c10::intrusive_ptr<DdaOptions>& options);

}  // namespace dda
