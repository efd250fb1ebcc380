// What a rank can find wrong with a call on its own, before anything is shared.
#pragma once

#include <string>

#include "dda/group.h"

namespace dda {

// What is wrong with `call` in a group of `size` ranks, or "".
std::string find_problem_in(const Call& call, int size);

}  // namespace dda
