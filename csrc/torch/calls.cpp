#include "torch/calls.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

namespace dda::calls {
namespace {

// Builds one operation; remembers for messages which.
class Builder {
 public:
  Builder(Collective collective, c10d::OpType type) : op_(collective, type) {}

  void read(const at::Tensor& tensor) {
    check(tensor, "input");
    op_.in.push_back(tensor);
  }

  void write(const at::Tensor& tensor) {
    check(tensor, "output");
    TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, name(),
                ": elements of the output share memory (it is an expanded tensor); pass "
                "output.clone()");
    op_.out.push_back(tensor);
  }

  void read_list(at::TensorList tensors, int size) {
    check_length(tensors, "input", size);
    for (const at::Tensor& tensor : tensors) read(tensor);
    op_.in_listed = true;
  }

  void write_list(at::TensorList tensors, int size) {
    check_length(tensors, "output", size);
    for (const at::Tensor& tensor : tensors) write(tensor);
    op_.out_listed = true;
  }

  void reduce(Reduction reduction) {
    TORCH_CHECK(is_defined(reduction.op, op_.call.dtype), name(), ": ", name_of(reduction.op),
                " is not defined on ", name_of(op_.call.dtype));
    op_.call.reduce = reduction.op;
    op_.call.factor = reduction.factor;
  }

  void root(int64_t rank, int size) {
    TORCH_CHECK(rank >= 0 && rank < size, name(), ": root ", rank,
                " is not a rank of this group of ", size);
    op_.call.root = static_cast<int>(rank);
  }

  // `larger` must have `times` as many elements as `smaller`.
  void check_ratio(const at::Tensor& larger, const at::Tensor& smaller, int times) const {
    TORCH_CHECK(larger.numel() == smaller.numel() * times, name(), ": a tensor of shape ",
                larger.sizes(), " does not have ",
                times == 1 ? "" : std::to_string(times) + " times ",
                "as many elements as one of shape ", smaller.sizes());
  }

  // The parts are one for each rank, `own` among them. Equal parts need no counts.
  void count_parts(const TensorVector& parts, const at::Tensor& own, int rank, Counts& counts) {
    check_ratio(parts[rank], own, 1);
    op_.call.count = own.numel();
    for (const at::Tensor& part : parts) counts.push_back(part.numel());
    const bool equal = std::all_of(counts.begin(), counts.end(),
                                   [&](int64_t count) { return count == counts[rank]; });
    if (equal) counts.clear();
  }

  std::string name() const { return std::string("dda ") + name_of(op_.call.collective); }
  Operation& op() { return op_; }
  Operation done() { return std::move(op_); }

 private:
  void check(const at::Tensor& tensor, const char* role) {
    TORCH_CHECK(tensor.defined(), name(), ": the ", role, " is an undefined tensor");
    TORCH_CHECK(tensor.layout() == at::kStrided, name(), ": the ", role, " has layout ",
                tensor.layout(), "; pass a dense tensor");
    const at::Device device = tensor.device();
    TORCH_CHECK(device.is_cpu() || device.is_cuda(), name(), ": the ", role, " is on ", device,
                ", and dda moves tensors on CPUs and GPUs; name a backend for that device too");
    const bool first = op_.in.empty() && op_.out.empty();
    if (!first) {
      const at::Tensor& other = op_.in.empty() ? op_.out[0] : op_.in[0];
      TORCH_CHECK(device == other.device(), name(), ": the ", role, " is on ", device,
                  " and another tensor on ", other.device(), "; all must be on one device");
    }
    const std::optional<DType> dtype = to_dtype(tensor.scalar_type());
    TORCH_CHECK(dtype, name(), ": the ", role, " is of dtype ", tensor.scalar_type(),
                ", which dda does not move; view it as uint8");
    TORCH_CHECK(first || *dtype == op_.call.dtype, name(), ": the ", role, " is of dtype ",
                name_of(*dtype), " and another tensor of ", name_of(op_.call.dtype));
    op_.call.dtype = *dtype;
  }

  void check_length(at::TensorList tensors, const char* role, int size) const {
    TORCH_CHECK(tensors.size() == static_cast<size_t>(size), name(), ": the ", role, " list has ",
                tensors.size(), " tensors; the group has ", size, " ranks");
  }

  Operation op_;
};

int64_t elements_of_row(const at::Tensor& tensor) {
  return std::accumulate(tensor.sizes().begin() + 1, tensor.sizes().end(), int64_t{1},
                         std::multiplies<>());
}

// The elements that each split of `tensor` covers.
void count_splits(const Builder& builder, const at::Tensor& tensor, at::IntArrayRef splits,
                  const char* role, int size, Counts& counts) {
  const int64_t rows = tensor.size(0);
  const int64_t row = elements_of_row(tensor);
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, builder.name(), ": the ", role, " has ", rows,
                " rows, which do not divide into ", size, " equal parts; pass split sizes");
    counts.assign(size, rows / size * row);
    return;
  }
  TORCH_CHECK(splits.size() == static_cast<size_t>(size), builder.name(), ": ", splits.size(), " ",
              role, " split sizes for a group of ", size, " ranks");
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK(split >= 0, builder.name(), ": the ", role, " split size ", split, " is negative");
    counts.push_back(split * row);
    sum += split;
  }
  TORCH_CHECK(sum == rows, builder.name(), ": the ", role, " split sizes ", splits, " add up to ",
              sum, "; the ", role, " has ", rows, " rows");
}

}  // namespace

Operation barrier() { return Builder(Collective::kBarrier, c10d::OpType::BARRIER).done(); }

Operation all_reduce(const at::Tensor& in, const at::Tensor& out, Reduction reduction,
                     Algorithm algorithm) {
  Builder builder(Collective::kAllReduce, c10d::OpType::ALLREDUCE);
  builder.read(in);
  builder.write(out);
  builder.reduce(reduction);
  builder.check_ratio(in, out, 1);
  builder.op().call.count = in.numel();
  builder.op().call.algorithm = algorithm;
  return builder.done();
}

Operation all_reduce_sparse(const at::Tensor& tensor, Reduction reduction) {
  TORCH_CHECK(reduction.op == ReduceOp::kSum,
              "dda all_reduce: of sparse tensors there is only a sum; call to_dense() for ",
              name_of(reduction.op));
  TORCH_CHECK(tensor.is_cpu(), "dda all_reduce: sparse tensors are summed on the CPU only; call ",
              "to_dense(), or cpu()");
  Operation operation(Collective::kAllReduce, c10d::OpType::_ALLREDUCE_SPARSE);
  operation.out.push_back(tensor);
  operation.is_sparse = true;
  return operation;
}

Operation reduce(const at::Tensor& in, const at::Tensor& out, Reduction reduction, int64_t root,
                 Place place) {
  Builder builder(Collective::kReduce, c10d::OpType::REDUCE);
  builder.read(in);
  builder.reduce(reduction);
  builder.root(root, place.size);
  if (root == place.rank) {
    builder.write(out);
    builder.check_ratio(in, out, 1);
  }
  builder.op().call.count = in.numel();
  return builder.done();
}

Operation broadcast(const at::Tensor& tensor, int64_t root, Place place) {
  Builder builder(Collective::kBroadcast, c10d::OpType::BROADCAST);
  builder.root(root, place.size);
  builder.read(tensor);
  if (root != place.rank) builder.write(tensor);
  builder.op().call.count = tensor.numel();
  return builder.done();
}

Operation all_gather(const at::Tensor& in, const at::Tensor& out, Place place) {
  Builder builder(Collective::kAllGather, c10d::OpType::_ALLGATHER_BASE);
  builder.read(in);
  builder.write(out);
  builder.check_ratio(out, in, place.size);
  builder.op().call.count = in.numel();
  return builder.done();
}

Operation all_gather(const at::Tensor& in, at::TensorList out, Place place) {
  Builder builder(Collective::kAllGather, c10d::OpType::ALLGATHER);
  builder.read(in);
  builder.write_list(out, place.size);
  builder.count_parts(builder.op().out, in, place.rank, builder.op().out_counts);
  return builder.done();
}

Operation reduce_scatter(const at::Tensor& in, const at::Tensor& out, Reduction reduction,
                         Place place) {
  Builder builder(Collective::kReduceScatter, c10d::OpType::_REDUCE_SCATTER_BASE);
  builder.read(in);
  builder.write(out);
  builder.reduce(reduction);
  builder.check_ratio(in, out, place.size);
  builder.op().call.count = out.numel();
  return builder.done();
}

Operation reduce_scatter(at::TensorList in, const at::Tensor& out, Reduction reduction,
                         Place place) {
  Builder builder(Collective::kReduceScatter, c10d::OpType::REDUCE_SCATTER);
  builder.read_list(in, place.size);
  builder.write(out);
  builder.reduce(reduction);
  builder.count_parts(builder.op().in, out, place.rank, builder.op().in_counts);
  return builder.done();
}

Operation gather(const at::Tensor& in, at::TensorList out, int64_t root, Place place) {
  Builder builder(Collective::kGather, c10d::OpType::GATHER);
  builder.read(in);
  builder.root(root, place.size);
  if (root == place.rank) {
    builder.write_list(out, place.size);
    for (const at::Tensor& part : out) builder.check_ratio(part, in, 1);
  } else {
    TORCH_CHECK(out.empty(), builder.name(), ": only the root takes an output list");
  }
  builder.op().call.count = in.numel();
  return builder.done();
}

Operation scatter(at::TensorList in, const at::Tensor& out, int64_t root, Place place) {
  Builder builder(Collective::kScatter, c10d::OpType::SCATTER);
  builder.write(out);
  builder.root(root, place.size);
  if (root == place.rank) {
    builder.read_list(in, place.size);
    for (const at::Tensor& part : in) builder.check_ratio(part, out, 1);
  } else {
    TORCH_CHECK(in.empty(), builder.name(), ": only the root takes an input list");
  }
  builder.op().call.count = out.numel();
  return builder.done();
}

Operation all_to_all(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef in_splits,
                     at::IntArrayRef out_splits, Place place) {
  Builder builder(Collective::kAllToAll, c10d::OpType::ALLTOALL_BASE);
  builder.read(in);
  builder.write(out);
  TORCH_CHECK(in.dim() > 0 && out.dim() > 0, builder.name(), ": a tensor without dimensions");
  Operation& op = builder.op();
  count_splits(builder, in, in_splits, "input", place.size, op.in_counts);
  count_splits(builder, out, out_splits, "output", place.size, op.out_counts);
  if (in_splits.empty() && out_splits.empty()) {
    builder.check_ratio(in, out, 1);
    op.call.count = in.numel() / place.size;
    op.in_counts.clear();
    op.out_counts.clear();
  } else {
    TORCH_CHECK(op.in_counts[place.rank] == op.out_counts[place.rank], builder.name(),
                ": this rank sends ", op.in_counts[place.rank], " elements to itself and expects ",
                op.out_counts[place.rank]);
  }
  return builder.done();
}

Operation all_to_all(at::TensorList in, at::TensorList out, Place place) {
  Builder builder(Collective::kAllToAll, c10d::OpType::ALLTOALL);
  builder.read_list(in, place.size);
  builder.write_list(out, place.size);
  builder.check_ratio(in[place.rank], out[place.rank], 1);
  for (const at::Tensor& part : in) builder.op().in_counts.push_back(part.numel());
  for (const at::Tensor& part : out) builder.op().out_counts.push_back(part.numel());
  return builder.done();
}

Operation send(const at::Tensor& tensor) {
  Builder builder(Collective::kSend, c10d::OpType::SEND);
  builder.read(tensor);
  builder.op().call.count = tensor.numel();
  return builder.done();
}

Operation receive(const at::Tensor& tensor) {
  Builder builder(Collective::kReceive, c10d::OpType::RECV);
  builder.write(tensor);
  builder.op().call.count = tensor.numel();
  return builder.done();
}

}  // namespace dda::calls
