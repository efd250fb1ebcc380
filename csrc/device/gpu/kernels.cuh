// Entry points: where a launch becomes an algorithm. Included by the files that instantiate them.
#pragma once

#include "collectives/all_reduce/flat.h"
#include "collectives/all_reduce/tree.h"
#include "collectives/push.h"
#include "collectives/reduce.h"
#include "collectives/reduce_scatter.h"
#include "device/gpu/kernels.h"
#include "device/gpu/push.h"
#include "device/gpu/reducer.h"

namespace dda::gpu {

// Where no chunk passes through a slot there is but one.
__device__ inline void take_whole(Task& t) {
  t.chunk = uint64_t{1} << 40;
  t.chunks = 1;
}

template <class E, bool kSum>
__device__ bool reduce_staged(GpuBlock& b, Task& t, const GpuCall& call) {
  const GpuReducer<E, kSum> reducer = {call.op, call.factor};
  const Collective c = call.collective;
  if (call.exchanges) {
    if (!b.enter()) return false;
    const bool is_tree = call.algorithm == Algorithm::kTree;
    const bool is_direct =
        is_tree ? b.writes_outputs() && c == Collective::kAllReduce : b.is_all_direct(-1);
    if (is_direct) take_whole(t);
  }
  if (c == Collective::kReduceScatter) return reduce_scatter(b, t, reducer);
  if (c == Collective::kAllReduce && (b.writes_outputs() || call.algorithm == Algorithm::kTree)) {
    return all_reduce_tree(b, t, reducer);
  }
  if (c == Collective::kAllReduce) return all_reduce_flat(b, t, reducer);
  if (call.algorithm == Algorithm::kTree) return all_reduce_tree(b, t, reducer, t.root);
  return reduce_flat(b, t, reducer);
}

template <class E, bool kSum>
__global__ void __launch_bounds__(kGpuThreads, kGpuBlocksPerUnit)
    reduce_kernel(const DDA_PARAMETER GpuCall call) {
  launch_early();
  GpuBlock b(call);
  if (!b.begin()) return;
  Task t = task_of(call);
  if (reduce_staged<E, kSum>(b, t, call) && b.leave()) b.end(t.chunks);
}

template <class E, bool kSum, class Wire>
__global__ void __launch_bounds__(kGpuThreads, kGpuBlocksPerUnit)
    push_kernel(const DDA_PARAMETER GpuCall call) {
  launch_early();
  PushBlock<Wire> b(call);
  const GpuReducer<E, kSum> reducer = {call.op, call.factor};
  reduce_push(b, task_of(call), {true, call.collective != Collective::kReduce}, reducer);
}

template <class E, class Wire>
GpuKernels kernels_of() {
  GpuKernels k;
  k.reduce[0] = reinterpret_cast<const void*>(&reduce_kernel<E, true>);
  k.reduce[1] = reinterpret_cast<const void*>(&reduce_kernel<E, false>);
  k.push[0] = reinterpret_cast<const void*>(&push_kernel<E, true, Wire>);
  k.push[1] = reinterpret_cast<const void*>(&push_kernel<E, false, Wire>);
  k.payload = Wire::kPayload;
  return k;
}
template <class E>
GpuKernels float_kernels() {
  return kernels_of<E, DataWire<E>>();
}
template <class E>
GpuKernels integer_kernels() {
  return kernels_of<E, FlagWire>();
}

// By family, so that the files compile side by side; nothing for another family's dtypes.
GpuKernels float_kernels_of(DType dtype);
GpuKernels half_kernels_of(DType dtype);
GpuKernels float8_kernels_of(DType dtype);
GpuKernels complex_kernels_of(DType dtype);
GpuKernels short_kernels_of(DType dtype);
GpuKernels long_kernels_of(DType dtype);

}  // namespace dda::gpu
