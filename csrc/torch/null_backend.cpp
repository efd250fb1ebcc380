#include "torch/null_backend.h"

namespace dda {
namespace {

WorkPtr nothing() { return c10::make_intrusive<FinishedWork>(c10d::OpType::UNKNOWN, Tensors{}); }

}  // namespace

WorkPtr NullBackend::allreduce(Tensors&, const c10d::AllreduceOptions&) { return nothing(); }
WorkPtr NullBackend::reduce(Tensors&, const c10d::ReduceOptions&) { return nothing(); }
WorkPtr NullBackend::broadcast(Tensors&, const c10d::BroadcastOptions&) { return nothing(); }
WorkPtr NullBackend::_allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) {
  return nothing();
}
WorkPtr NullBackend::_reduce_scatter_base(at::Tensor&, at::Tensor&,
                                          const c10d::ReduceScatterOptions&) {
  return nothing();
}
WorkPtr NullBackend::gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) {
  return nothing();
}
WorkPtr NullBackend::scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) {
  return nothing();
}
WorkPtr NullBackend::alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&,
                                   std::vector<int64_t>&, const c10d::AllToAllOptions&) {
  return nothing();
}
WorkPtr NullBackend::barrier(const c10d::BarrierOptions&) { return nothing(); }

}  // namespace dda
