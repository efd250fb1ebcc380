// What a call means, on every device: pure functions of the call and the size of its group.
#pragma once

#include "core/signature.h"
#include "dda/group.h"

namespace dda {

// What the ranks must agree on.
Signature sign(const Call& call, int size);
// Elements of the longest part that this rank contributes or receives.
uint64_t longest_part(const Call& call, int size);

}  // namespace dda
