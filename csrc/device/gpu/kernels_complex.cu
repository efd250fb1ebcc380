#include "device/gpu/kernels.cuh"

namespace dda::gpu {

GpuKernels complex_kernels_of(DType dtype) {
  if (dtype == DType::kComplex64) return float_kernels<Complex<Float32>>();
  if (dtype == DType::kComplex128) return float_kernels<Complex<Float64>>();
  return {};
}

}  // namespace dda::gpu
