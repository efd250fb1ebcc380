// From the tensors that users pass to operations, one function for each collective and form.
//
// Everything that one rank alone can find wrong is found here, before anything moves: a sparse or
// foreign tensor, sizes that do not fit, an operation that has no meaning on a dtype. The functions
// throw what torch's own backends throw (RuntimeError in Python).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "torch/dtypes.h"
#include "torch/operation.h"

namespace dda::calls {

// Where this process stands in a group.
struct Place {
  int rank;
  int size;
};

Operation barrier();
// `in` may be `out`.
Operation all_reduce(const at::Tensor& in, const at::Tensor& out, Reduction reduction,
                     Algorithm algorithm = Algorithm::kAuto);
// In place, of a tensor of layout sparse_coo.
Operation all_reduce_sparse(const at::Tensor& tensor, Reduction reduction);
// `out` is written on the root only.
Operation reduce(const at::Tensor& in, const at::Tensor& out, Reduction reduction, int64_t root,
                 Place place);
Operation broadcast(const at::Tensor& tensor, int64_t root, Place place);

Operation all_gather(const at::Tensor& in, const at::Tensor& out, Place place);
Operation all_gather(const at::Tensor& in, at::TensorList out, Place place);
Operation reduce_scatter(const at::Tensor& in, const at::Tensor& out, Reduction reduction,
                         Place place);
Operation reduce_scatter(at::TensorList in, const at::Tensor& out, Reduction reduction,
                         Place place);

// `out` is empty on ranks other than the root; so is scatter's `in`.
Operation gather(const at::Tensor& in, at::TensorList out, int64_t root, Place place);
Operation scatter(at::TensorList in, const at::Tensor& out, int64_t root, Place place);

// Splits count rows of the first dimension; empty splits mean equal ones.
Operation all_to_all(const at::Tensor& in, const at::Tensor& out, at::IntArrayRef in_splits,
                     at::IntArrayRef out_splits, Place place);
Operation all_to_all(at::TensorList in, at::TensorList out, Place place);

// One end of a message; only `call.dtype`, `call.count` and the tensor are set.
Operation send(const at::Tensor& tensor);
Operation receive(const at::Tensor& tensor);

}  // namespace dda::calls
