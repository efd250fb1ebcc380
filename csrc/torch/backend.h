// dda as a backend of torch.distributed: one method for each collective that torch asks for.
//
// A synchronous call runs in the caller's thread, an asynchronous one in the group's queue (see
// work.h). A call that this rank finds wrong before anything has moved raises here, and the peers
// are told so that they raise too. The methods override the names that every torch since 2.9
// calls; later releases forward their new names to these.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dda/group.h"
#include "engine/work_queue.h"
#include "torch/executor.h"
#include "torch/gpu_side.h"
#include "torch/messages.h"
#include "torch/options.h"
#include "torch/split.h"
#include "torch/work.h"

namespace dda {

class DdaBackend final : public c10d::Backend, public Executor {
 public:
  DdaBackend(std::shared_ptr<Group> group, std::unique_ptr<GpuSide> gpu,
             c10::intrusive_ptr<DdaOptions> options);
  ~DdaBackend() override { shutdown(); }

  Group& group() { return *group_; }
  GpuSide& gpu() { return *gpu_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // Calls run as they are issued; the block's handle stands for all of them.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { block_.emplace(); }
  WorkPtr endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override {
    return splitter_.split(store, ranks, getRank(), opts, *options_);
  }

  const std::string getBackendName() const override { return "dda"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_->clone(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // the engine counts from zero on every rank
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override;
  void abort() override { abort("abort() was called"); }
  void abort(const std::string& why);
  // Local, bounded, idempotent. What is still queued fails.
  void shutdown() override;

  void execute(const Operation& operation) override;
  void refuse(const std::exception& error, bool on_gpu) noexcept override;
  calls::Place place() const override { return {getRank(), getSize()}; }
  // Collective: returns `bytes` bytes of symmetric memory on a device as a uint8 tensor.
  at::Tensor allocate(int64_t bytes, at::Device device);

 private:
  template <typename CallOptions, typename Fill>
  WorkPtr issue(const char* title, c10d::OpType type, const CallOptions& opts, bool on_gpu,
                Fill fill);
  WorkPtr start(c10d::OpType type, bool is_async, Batch& batch);
  WorkPtr track(WorkPtr work);
  WorkPtr message_on_gpu(c10d::OpType type, Operation operation, int peer);
  WorkPtr dispatch(const c10::intrusive_ptr<MessageWork>& work);

  const std::shared_ptr<Group> group_;
  const std::unique_ptr<GpuSide> gpu_;
  const c10::intrusive_ptr<DdaOptions> options_;
  const pid_t owner_;
  const std::shared_ptr<WorkQueue> queue_ = std::make_shared<WorkQueue>();
  const std::shared_ptr<Courier> courier_;
  std::optional<std::vector<WorkPtr>> block_;  // the calls of an open coalescing block
  Splitter splitter_;
};

}  // namespace dda
