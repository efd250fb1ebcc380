#include "device/gpu/kernels.cuh"

namespace dda::gpu {

GpuKernels float8_kernels_of(DType dtype) {
  if (dtype == DType::kFloat8E4M3) return float_kernels<Float8E4M3>();
  if (dtype == DType::kFloat8E5M2) return float_kernels<Float8E5M2>();
  return {};
}

}  // namespace dda::gpu
