// A call of a collective together with the tensors that it reads and writes.
//
// The engine wants contiguous memory and torch allows any strides, so an operation *stages* a
// tensor of another layout through a contiguous stand-in. Inputs are staged when the operation runs
// (an operation issued before it may still write them), and outputs are copied back through their
// strides after the call has succeeded: a call that fails writes nothing.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <string>

#include "dda/group.h"

namespace dda {

// Room for one tensor without a visit to the heap.
using TensorVector = c10::SmallVector<at::Tensor, 1>;
using Counts = c10::SmallVector<int64_t, 8>;

struct Operation {
  Operation(Collective collective, c10d::OpType op_type) : type(op_type) {
    call.collective = collective;
  }

  // Runs the call to its end. Throws RaisedError, and what torch throws while it stages, of which
  // the peers are told.
  void run(Group& group) const;
  // As run, with `call` for what makes the call, and `refuse` for what tells the peers.
  void perform(int rank, c10::function_ref<void(const Call&)> call,
               c10::function_ref<void(const std::exception&)> refuse) const;
  // What Work::result returns.
  std::vector<at::Tensor> results() const;

  bool is_on_gpu() const {
    return !in.empty() ? in[0].is_cuda() : !out.empty() && out[0].is_cuda();
  }

  Call call;  // all but the pointers and the counts
  c10d::OpType type;
  TensorVector in, out;  // one tensor each, or one for each rank where `..._listed`
  bool in_listed = false, out_listed = false;
  bool is_sparse = false;        // the tensor of an all_reduce, which goes by sparse.h
  Counts in_counts, out_counts;  // elements for each rank; empty where the parts are equal
};

// Several operations that are issued as one; nearly always one.
using Batch = c10::SmallVector<Operation, 1>;

// Raises unless a coalesced call has as many outputs as inputs.
void check_same_length(size_t outputs, size_t inputs);

// Without torch's stack trace.
std::string message_of(const std::exception& error);

// Tells the peers that this rank cannot take part in the call that they make now, because of
// `error`.
void refuse(Group& group, const std::exception& error) noexcept;

}  // namespace dda
