// Times a collective in the engine alone: no torch and no Python in the loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dda/group.h"

namespace dda {

struct Measurement {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  Algorithm algorithm = Algorithm::kAuto;
  uint64_t bytes = 0;  // of the larger of a rank's two buffers, as nccl-tests counts
  int iterations = 1;
  bool symmetric = false;  // whether the buffers are symmetric memory
};

// Collective. Returns the microseconds of each iteration on this rank. Buffers are made here, and
// input and output are distinct.
std::vector<double> measure(Group& group, const Measurement& what);

}  // namespace dda
