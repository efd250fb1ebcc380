// The kernels that move bytes without a look at them, and the table of all.
#include <array>

#include "collectives/all_gather.h"
#include "collectives/all_to_all.h"
#include "collectives/rooted.h"
#include "device/gpu/block.h"
#include "device/gpu/kernels.cuh"
#include "device/gpu/message.h"

namespace dda {
namespace {

__device__ bool move(GpuBlock& b, Task& t, const GpuCall& call) {
  if (call.exchanges) {
    if (!b.enter()) return false;
    const bool is_broadcast = call.collective == Collective::kBroadcast;
    if (b.is_all_direct(is_broadcast ? t.root : -1)) gpu::take_whole(t);
  }
  switch (call.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter:
      return from_root(b, t, call.collective == Collective::kScatter);
    case Collective::kGather:
      return to_root(b, t);
    case Collective::kAllGather:
      return all_gather(b, t);
    case Collective::kAllToAll:
      if (call.uneven) {
        const uint64_t longest = b.agree_on_longest(t.in.count, t.in, t.out);
        if (longest == UINT64_MAX) return false;
        t.chunks = chunks_of(part_of({0, longest}, 0, t.blocks, t.element).count, t.chunk);
      }
      return all_to_all(b, t);
    default:
      return false;
  }
}

__global__ void __launch_bounds__(kGpuThreads, kGpuBlocksPerUnit)
    move_kernel(const DDA_PARAMETER GpuCall call) {
  gpu::launch_early();
  GpuBlock b(call);
  if (!b.begin()) return;
  Task t = task_of(call);
  if (move(b, t, call) && b.leave()) b.end(t.chunks);
}

static_assert(kMovePayload == FlagWire::kPayload, "what the host is told");

__global__ void __launch_bounds__(kGpuThreads, kGpuBlocksPerUnit)
    push_move_kernel(const DDA_PARAMETER GpuCall call) {
  gpu::launch_early();
  PushBlock<FlagWire> b(call);
  const Collective c = call.collective;
  const bool from_root = c == Collective::kBroadcast || c == Collective::kScatter;
  move_push(b, task_of(call), {!from_root, c != Collective::kGather});
}

__global__ void __launch_bounds__(kGpuThreads, kGpuBlocksPerUnit)
    message_kernel(const DDA_PARAMETER GpuCall call) {
  gpu::launch_early();
  GpuChannel channel(call);
  if (call.collective == Collective::kSend) {
    channel.send();
  } else {
    channel.receive();
  }
}

}  // namespace

const void* gpu_message_kernel() { return reinterpret_cast<const void*>(&message_kernel); }

const void* gpu_move_kernel(bool pushes) {
  return pushes ? reinterpret_cast<const void*>(&push_move_kernel)
                : reinterpret_cast<const void*>(&move_kernel);
}

const GpuKernels& gpu_kernels(DType dtype) {
  static const auto table = [] {
    std::array<GpuKernels, kNumDTypes> all;
    for (int d = 0; d < kNumDTypes; ++d) {
      for (const auto of : {gpu::float_kernels_of, gpu::half_kernels_of, gpu::float8_kernels_of,
                            gpu::complex_kernels_of, gpu::short_kernels_of, gpu::long_kernels_of}) {
        const GpuKernels kernels = of(static_cast<DType>(d));
        if (kernels.push[0] != nullptr) all[d] = kernels;
      }
    }
    return all;
  }();
  return table[static_cast<int>(dtype)];
}

}  // namespace dda
