// The kernels of all collectives, one template each, and the table in which the host finds them.
#pragma once

#include <cstdint>

#include "dda/types.h"
#include "device/gpu/call.h"

namespace dda {

inline constexpr int kGpuThreads = 512;      // of a block, at most
inline constexpr int kGpuBlocksPerUnit = 2;  // blocks that a multiprocessor holds, at least

// Kernels take a GpuCall. [0]: sums, averages and premultiplied sums; [1]: the other reductions.
struct GpuKernels {
  const void* reduce[2] = {nullptr, nullptr};
  const void* push[2] = {nullptr, nullptr};
  int payload = 16;  // bytes of a pack of `push`
};

// Of a dtype that can be reduced; all nullptr for others.
const GpuKernels& gpu_kernels(DType dtype);
// Moves bytes: the collectives that do not reduce; by push, in packs of kMovePayload bytes, or
// through staging slots.
inline constexpr int kMovePayload = 8;
const void* gpu_move_kernel(bool pushes);
// Sends or receives a message; at most kChannelBlocks blocks.
const void* gpu_message_kernel();

}  // namespace dda
