// The backend of a group whose ranks do not all share memory (they are on different hosts): it
// hands every call to gloo, which was made on the same store. Coalesced calls are handed over one
// by one: gloo's own take one dtype only, and it opens no coalescing block.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <optional>
#include <string>
#include <vector>

#include "torch/executor.h"
#include "torch/options.h"
#include "torch/split.h"
#include "torch/work.h"

namespace dda {

class FallbackBackend final : public c10d::Backend, public Executor {
 public:
  FallbackBackend(c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<DdaOptions> options,
                  std::string why)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        options_(std::move(options)),
        why_(std::move(why)) {}

  // Why gloo and not dda.
  const std::string& reason() const { return why_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    check(opts.reduceOp, tensors);
    return track(gloo_->allreduce(tensors, opts));
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    check(opts.reduceOp, tensors);
    return track(gloo_->reduce(tensors, opts));
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return track(gloo_->broadcast(tensors, opts));
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override {
    return track(gloo_->allgather(outputs, inputs, opts));
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override {
    return track(gloo_->_allgather_base(output, input, opts));
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override {
    check(opts.reduceOp, outputs);
    return track(gloo_->reduce_scatter(outputs, inputs, opts));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override {
    check(opts.reduceOp, output);
    return track(gloo_->_reduce_scatter_base(output, input, opts));
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override {
    return track(gloo_->gather(outputs, inputs, opts));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override {
    return track(gloo_->scatter(outputs, inputs, opts));
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override {
    return track(gloo_->alltoall_base(output, input, output_splits, input_splits, opts));
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return track(gloo_->alltoall(outputs, inputs, opts));
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override { return track(gloo_->barrier(opts)); }
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return track(gloo_->send(tensors, peer, tag));
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return track(gloo_->recv(tensors, peer, tag));
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return track(gloo_->recvAnysource(tensors, tag));
  }

  // As DdaBackend's: calls run as they are issued.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { block_.emplace(); }
  WorkPtr endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  // The members of a child may be on one host.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override {
    return splitter_.split(store, ranks, getRank(), opts, *options_);
  }

  const std::string getBackendName() const override { return "dda"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_->clone(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  c10d::ErrorType getError() override { return gloo_->getError(); }
  void abort() override { gloo_->abort(); }
  void shutdown() override { gloo_->shutdown(); }

  void execute(const Operation& operation) override;
  // Gloo has no word for it: the peers run into their timeouts.
  void refuse(const std::exception&, bool) noexcept override {}
  calls::Place place() const override { return {getRank(), getSize()}; }

 private:
  // Raises where gloo would have written a sum before it fails.
  static void check(const c10d::ReduceOp& op, at::TensorList tensors);
  WorkPtr track(WorkPtr work);
  template <typename Issue>
  WorkPtr one_by_one(size_t calls, Issue issue);

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const c10::intrusive_ptr<DdaOptions> options_;
  const std::string why_;
  std::optional<std::vector<WorkPtr>> block_;  // the calls of an open coalescing block
  Splitter splitter_;
};

}  // namespace dda
