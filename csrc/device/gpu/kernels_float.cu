#include "device/gpu/kernels.cuh"

namespace dda::gpu {

GpuKernels float_kernels_of(DType dtype) {
  if (dtype == DType::kFloat32) return float_kernels<Float32>();
  if (dtype == DType::kFloat64) return float_kernels<Float64>();
  return {};
}

}  // namespace dda::gpu
