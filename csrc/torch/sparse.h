// The sum of sparse tensors. Ranks hold different numbers of values, so they first tell each other
// how many, then gather everybody's indices and values, and each adds them up.
#pragma once

#include "torch/operation.h"

namespace dda {

// Runs an operation of calls::all_reduce_sparse to its end: writes the coalesced sum over ranks to
// its tensor. Each of the three steps may take the operation's timeout.
void sparse_all_reduce(Group& group, const Operation& operation);

}  // namespace dda
