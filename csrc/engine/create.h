// How the arena of a rank begins.
#pragma once

#include <vector>

#include "dda/group.h"
#include "memory/exchange.h"
#include "memory/layout.h"

namespace dda {

// Puts every counter where it stands after `calls_before` calls, and says whose arena this is.
void prepare_arena(unsigned char* base, const Layout& layout, const GroupOptions& options,
                   const uint64_t* nonce);

// Reads the nonce through the mappings: that, not a host's name, proves that memory is shared.
void verify_arenas(const std::vector<Neighbour>& all, const GroupOptions& options,
                   const uint64_t* nonce);

}  // namespace dda
