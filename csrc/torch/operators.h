// torch.ops.dda.*: the collectives as operators with true schemas, which run in the caller's thread
// and which torch.compile, torch.library.opcheck and autograd understand.
//
// A group goes by its name, as in torch's functional collectives. `root` is a rank of the group.
// Tensors are split and joined along the first dimension.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <string>

namespace dda {

using OptionalSplits = at::OptionalSymIntArrayRef;

// The process group of that name.
c10::intrusive_ptr<c10d::ProcessGroup> group_named(const std::string& name);

// Tells the peers in a group that this rank refuses the call that they make; see Group::refuse.
void refuse_in(const std::string& group_name, const std::exception& error,
               at::DeviceType device) noexcept;

// Shapes of results; they are shared by the kernels that compute and those that do not. Both check
// what can be checked without a group.
at::Tensor new_gathered(const at::Tensor& input, int64_t ranks);
at::Tensor new_scattered(const at::Tensor& input, int64_t ranks);
at::Tensor new_exchanged(const at::Tensor& input, OptionalSplits output_splits);

}  // namespace dda
