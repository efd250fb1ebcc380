// Contiguous stand-ins for tensors of other layouts.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace dda {

// Whether the engine can use the tensor's memory as it lies.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

// Below autograd: `to` may be a parameter, and what happens here is not differentiated.
inline void overwrite(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}

inline at::Tensor stand_in(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::empty(tensor.sizes(), tensor.options());
}

inline at::Tensor contiguous_copy(const at::Tensor& tensor) {
  at::Tensor result = stand_in(tensor);
  overwrite(result, tensor);
  return result;
}

}  // namespace dda
