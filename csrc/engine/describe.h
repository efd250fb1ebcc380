// What a call means, on every device: pure functions of the call and the size of its group.
#pragma once

#include "core/signature.h"
#include "dda/group.h"

namespace dda {

// Whether all ranks see the tensor as one, or as a part a rank.
bool is_input_whole(Collective c);
bool is_output_whole(Collective c);

// What the ranks must agree on.
Signature sign(const Call& call, int size);
// Elements of the longest part that this rank contributes or receives.
uint64_t longest_part(const Call& call, int size);

}  // namespace dda
