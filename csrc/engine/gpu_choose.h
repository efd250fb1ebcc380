// Which way a call on GPUs takes: by push or through staging slots, with how many blocks and
// threads. A pure function of what is equal on all ranks.
#pragma once

#include "dda/group.h"
#include "device/gpu/layout.h"

namespace dda {

struct GpuPlan {
  bool pushes = false;
  Algorithm algorithm = Algorithm::kFlat;
  int blocks = 1;
  int threads = 32;
  uint64_t chunk = 1;   // elements of a part
  uint64_t chunks = 1;  // of the block that has most
};

// `longest`: elements of the longest part. `payload`: bytes of a pack of the dtype's push kernel.
GpuPlan choose_gpu(Collective collective, Algorithm asked, uint64_t longest, uint64_t element,
                   int payload, bool uneven, const GpuLayout& layout);

GpuPlan choose_message(uint64_t bytes);

Explanation explain_gpu(Collective collective, uint64_t bytes, const GpuLayout& layout);

}  // namespace dda
