// One launch: all that a kernel is told, in its parameters.
#pragma once

#include "collectives/task.h"
#include "dda/types.h"
#include "device/gpu/layout.h"

namespace dda {

struct GpuPart {
  unsigned char* pointer[kMaxGpuRanks];
  uint64_t offset[kMaxGpuRanks];
  int64_t count[kMaxGpuRanks];
};

struct GpuCall {
  unsigned char* arena[kMaxGpuRanks];
  GpuLayout layout;
  int rank = 0;
  Collective collective = Collective::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kFlat;
  bool uneven = false;  // all_to_all: the longest part is known on the devices only
  Task task;            // its pointers point into `in` and `out`, see task_of
  bool in_listed = false, out_listed = false, in_counted = false, out_counted = false;
  GpuPart in, out;
  // Whether the ranks first tell each other where their tensors lie, because some may be symmetric.
  bool exchanges = false;
  uint64_t in_place = 0, out_place = 0;  // this rank's: a GpuPlace, or 0
  double factor = 1.0;
  uint64_t signature = 0;
  uint64_t budget_ns = 0;         // 0: the group's
  GpuHostWords* words = nullptr;  // in memory of the host
};

// The task with pointers that hold where `call` lies now.
DDA_SHARED inline Task task_of(const GpuCall& call) {
  Task t = call.task;
  const auto point = [](Parts& parts, const GpuPart& at, bool listed, bool counted) {
    parts.pointers = listed ? reinterpret_cast<void* const*>(at.pointer) : nullptr;
    parts.offsets = counted ? at.offset : nullptr;
    parts.counts = counted ? at.count : nullptr;
  };
  point(t.in, call.in, call.in_listed, call.in_counted);
  point(t.out, call.out, call.out_listed, call.out_counted);
  return t;
}

}  // namespace dda
