#include "device/gpu/kernels.cuh"

namespace dda::gpu {

GpuKernels long_kernels_of(DType dtype) {
  if (dtype == DType::kUInt32) return integer_kernels<Integer<uint32_t, int64_t>>();
  if (dtype == DType::kInt32) return integer_kernels<Integer<int32_t, int64_t>>();
  if (dtype == DType::kUInt64) return integer_kernels<Integer<uint64_t, uint64_t>>();
  if (dtype == DType::kInt64) return integer_kernels<Integer<int64_t, int64_t>>();
  return {};
}

}  // namespace dda::gpu
