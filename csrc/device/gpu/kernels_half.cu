#include "device/gpu/kernels.cuh"

namespace dda::gpu {

GpuKernels half_kernels_of(DType dtype) {
  if (dtype == DType::kFloat16) return float_kernels<Float16>();
  if (dtype == DType::kBFloat16) return float_kernels<BFloat16>();
  return {};
}

}  // namespace dda::gpu
