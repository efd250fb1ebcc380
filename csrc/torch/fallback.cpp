#include "torch/fallback.h"

#include <utility>

namespace dda {
namespace {

c10d::ReduceOp to_torch(const Call& call) {
  switch (call.reduce) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kBand:
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBxor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::kPremulSum:
      return c10d::ReduceOp(c10d::ReduceOp::PREMUL_SUM,
                            c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(call.factor));
  }
  TORCH_INTERNAL_ASSERT(false);
}

template <typename Options>
Options with_timeout(const Operation& operation) {
  Options options;
  if (operation.call.timeout.count() > 0) options.timeout = operation.call.timeout;
  return options;
}

template <typename Options>
Options with_reduction(const Operation& operation) {
  Options options = with_timeout<Options>(operation);
  options.reduceOp = to_torch(operation.call);
  return options;
}

template <typename Options>
Options with_root(const Operation& operation) {
  Options options = with_timeout<Options>(operation);
  options.rootRank = operation.call.root;
  return options;
}

}  // namespace

void FallbackBackend::execute(const Operation& op) {
  Tensors in(op.in.begin(), op.in.end());
  Tensors out(op.out.begin(), op.out.end());
  std::vector<Tensors> lists;
  std::vector<int64_t> in_splits, out_splits;
  switch (op.call.collective) {
    case Collective::kBarrier:
      barrier(with_timeout<c10d::BarrierOptions>(op))->wait();
      return;
    case Collective::kAllReduce:
      if (!out[0].is_same(in[0])) out[0].copy_(in[0]);
      allreduce(out, with_reduction<c10d::AllreduceOptions>(op))->wait();
      return;
    case Collective::kReduce: {
      auto options = with_reduction<c10d::ReduceOptions>(op);
      options.rootRank = op.call.root;
      Tensors tensors{out.empty() ? in[0].clone() : out[0]};
      if (!out.empty() && !out[0].is_same(in[0])) out[0].copy_(in[0]);
      reduce(tensors, options)->wait();
      return;
    }
    case Collective::kBroadcast:
      broadcast(in, with_root<c10d::BroadcastOptions>(op))->wait();
      return;
    case Collective::kAllGather:
      if (op.out_listed) {
        lists.push_back(std::move(out));
        allgather(lists, in, with_timeout<c10d::AllgatherOptions>(op))->wait();
      } else {
        _allgather_base(out[0], in[0], with_timeout<c10d::AllgatherOptions>(op))->wait();
      }
      return;
    case Collective::kReduceScatter:
      if (op.in_listed) {
        lists.push_back(std::move(in));
        reduce_scatter(out, lists, with_reduction<c10d::ReduceScatterOptions>(op))->wait();
      } else {
        _reduce_scatter_base(out[0], in[0], with_reduction<c10d::ReduceScatterOptions>(op))->wait();
      }
      return;
    case Collective::kGather:
      if (op.out_listed) lists.push_back(std::move(out));
      gather(lists, in, with_root<c10d::GatherOptions>(op))->wait();
      return;
    case Collective::kScatter:
      if (op.in_listed) lists.push_back(std::move(in));
      scatter(out, lists, with_root<c10d::ScatterOptions>(op))->wait();
      return;
    case Collective::kAllToAll:
      if (op.in_listed) {
        alltoall(out, in, with_timeout<c10d::AllToAllOptions>(op))->wait();
        return;
      }
      // The counts are in elements and torch's splits in rows: as vectors the rows are elements.
      in_splits.assign(op.in_counts.begin(), op.in_counts.end());
      out_splits.assign(op.out_counts.begin(), op.out_counts.end());
      {
        at::Tensor to = out[0].is_contiguous() ? out[0].view(-1) : at::empty_like(out[0]).view(-1);
        at::Tensor from = in[0].reshape(-1);
        alltoall_base(to, from, out_splits, in_splits, with_timeout<c10d::AllToAllOptions>(op))
            ->wait();
        if (!out[0].is_contiguous()) out[0].copy_(to.view(out[0].sizes()));
      }
      return;
    default:
      TORCH_INTERNAL_ASSERT(false, "dda: not a collective");
  }
}

}  // namespace dda
