// A backend that does nothing: what a call through torch.distributed costs without any transport.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <vector>

#include "torch/work.h"

namespace dda {

class NullBackend final : public c10d::Backend {
 public:
  NullBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "dda_null"; }

  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override;
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor&,
                               const c10d::ReduceScatterOptions&) override;
  WorkPtr gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
  WorkPtr scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override;
  WorkPtr alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;
};

}  // namespace dda
