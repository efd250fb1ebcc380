#include "device/gpu/kernels.cuh"

namespace dda::gpu {

GpuKernels short_kernels_of(DType dtype) {
  if (dtype == DType::kUInt8) return integer_kernels<Integer<uint8_t, int64_t>>();
  if (dtype == DType::kInt8) return integer_kernels<Integer<int8_t, int64_t>>();
  if (dtype == DType::kUInt16) return integer_kernels<Integer<uint16_t, int64_t>>();
  if (dtype == DType::kInt16) return integer_kernels<Integer<int16_t, int64_t>>();
  if (dtype == DType::kBool) return integer_kernels<Bool>();
  return {};
}

}  // namespace dda::gpu
