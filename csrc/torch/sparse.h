// The sum of sparse tensors. Ranks hold different numbers of values, so they first tell each other
// how many, then gather everybody's indices and values, and each adds them up.
#pragma once

#include "torch/executor.h"

namespace dda {

// Writes the coalesced sum over ranks to `tensor` (layout sparse_coo). Only sums exist. Each of the
// three steps may take `timeout`; 0: the group's.
void sparse_all_reduce(Executor& executor, const at::Tensor& tensor, Reduction reduction,
                       milliseconds timeout);

}  // namespace dda
