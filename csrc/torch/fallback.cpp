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

void FallbackBackend::check(const c10d::ReduceOp& op, at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(op != c10d::ReduceOp::AVG || !c10::isIntegralType(tensor.scalar_type(), true),
                "dda: gloo, which serves this group, has no average of ", tensor.scalar_type(),
                "; sum and divide");
  }
}

WorkPtr FallbackBackend::track(WorkPtr work) {
  if (block_) block_->push_back(work);
  return work;
}

template <typename Issue>
WorkPtr FallbackBackend::one_by_one(size_t calls, Issue issue) {
  std::vector<WorkPtr> parts;
  for (size_t i = 0; i < calls; ++i) parts.push_back(issue(i));
  return track(c10::make_intrusive<CombinedWork>(std::move(parts)));
}

WorkPtr FallbackBackend::allreduce_coalesced(Tensors& tensors,
                                             const c10d::AllreduceCoalescedOptions& opts) {
  check(opts.reduceOp, tensors);
  return one_by_one(tensors.size(), [&](size_t i) {
    Tensors one{tensors[i]};
    return gloo_->allreduce(one, opts);
  });
}

WorkPtr FallbackBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  for (const Tensors& of_rank : outputs) check_same_length(of_rank.size(), inputs.size());
  return one_by_one(inputs.size(), [&](size_t i) {
    std::vector<Tensors> parts(1);
    for (const Tensors& of_rank : outputs) parts[0].push_back(of_rank[i]);
    Tensors one{inputs[i]};
    return gloo_->allgather(parts, one, opts);
  });
}

WorkPtr FallbackBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& opts) {
  check_same_length(outputs.size(), inputs.size());
  return one_by_one(inputs.size(),
                    [&](size_t i) { return gloo_->_allgather_base(outputs[i], inputs[i], opts); });
}

WorkPtr FallbackBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  check_same_length(outputs.size(), inputs.size());
  check(opts.reduceOp, outputs);
  return one_by_one(inputs.size(), [&](size_t i) {
    return gloo_->_reduce_scatter_base(outputs[i], inputs[i], opts);
  });
}

WorkPtr FallbackBackend::endCoalescing() {
  TORCH_CHECK(block_, "dda: endCoalescing without startCoalescing");
  auto work = c10::make_intrusive<CombinedWork>(std::move(*block_));
  block_.reset();
  return work;
}

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
