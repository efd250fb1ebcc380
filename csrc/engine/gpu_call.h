// A call as a kernel is told of it.
#pragma once

#include "dda/group.h"
#include "device/gpu/call.h"
#include "engine/gpu_choose.h"

namespace dda {

// An all_to_all whose parts this rank has listed, be they equal or not: only the devices know what
// the peers have listed.
bool has_splits(const Call& call);
// What the ranks must agree on; of calls with splits not the counts.
uint64_t sign_for_gpu(const Call& call, int size);
// All but what is this rank's alone: its arenas, its number, its words.
GpuCall write_down(const Call& call, const GpuPlan& plan, const GpuLayout& layout);

}  // namespace dda
